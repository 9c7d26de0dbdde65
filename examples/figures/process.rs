//! Other processes, and this one's threads, as Linux shows them under `/proc`.

// Each user takes a part of it.
#![allow(dead_code)]

use std::fs;
use std::process::{Command, Stdio};

/// A running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The processes called `envoy` that this one started, directly or through a shell.
    pub fn own_envoys() -> Result<Vec<Self>, String> {
        let own = std::process::id();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").map_err(|e| format!("/proc: {e}"))? {
            let name = entry.map_err(|e| format!("/proc: {e}"))?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that has ended meanwhile is none of ours.
            let Ok(status) = Status::of(pid) else {
                continue;
            };
            let grandparent = Status::of(status.parent).map_or(0, |parent| parent.parent);
            if status.name.starts_with("envoy") && (status.parent == own || grandparent == own) {
                found.push(Self(pid));
            }
        }
        Ok(found)
    }

    /// The one that asks.
    pub fn this() -> Self {
        Self(std::process::id())
    }

    /// CPU time that all its threads have used, in the kernel too.
    pub fn cpu_us(self) -> Result<u64, String> {
        Ok(Status::of(self.0)?.cpu_ticks * 1_000_000 / ticks_per_second()?)
    }

    /// Memory that it has in RAM.
    pub fn rss_bytes(self) -> Result<u64, String> {
        let file = format!("/proc/{}/status", self.0);
        let text = fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let kilobytes = kilobytes.ok_or_else(|| format!("{file} has no VmRSS"))?;
        Ok(kilobytes * 1_024)
    }

    /// Lets all its threads, and those it will start, run on one core only.
    pub fn pin(self, core: u32) -> Result<(), String> {
        taskset(&["-a", "-c", "-p", &core.to_string(), &self.0.to_string()])
    }
}

/// Two cores that this process may use; `None` if it has but one, or if threads can't be pinned.
pub fn two_cores() -> Option<(u32, u32)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
        bounds.map_or(0..0, |(first, last)| first..last + 1)
    });
    let two = (cores.next()?, cores.next()?);
    taskset(&["--version"]).ok().map(|()| two)
}

/// Lets the calling thread run on one core only.
pub fn pin_this_thread(core: u32) -> Result<(), String> {
    let link = fs::read_link("/proc/thread-self").map_err(|e| format!("/proc/thread-self: {e}"))?;
    let thread = link.file_name().and_then(|name| name.to_str());
    let thread = thread.ok_or("/proc/thread-self names no thread")?;
    taskset(&["-c", "-p", &core.to_string(), thread])
}

fn taskset(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("taskset")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("taskset: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn ticks_per_second() -> Result<u64, String> {
    let output = Command::new("getconf")
        .arg("CLK_TCK")
        .output()
        .map_err(|e| format!("getconf: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .map_err(|e| format!("getconf CLK_TCK: {e}"))
}

/// Some fields of `/proc/PID/stat`.
struct Status {
    name: String,
    parent: u32,
    cpu_ticks: u64,
}

impl Status {
    fn of(pid: u32) -> Result<Self, String> {
        let file = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        Self::parse(&text).ok_or_else(|| format!("{file}: {text:?}"))
    }

    /// The name stands in parentheses and may hold any others; fields are counted behind it.
    fn parse(text: &str) -> Option<Self> {
        let (before, fields) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let user: u64 = fields.get(11)?.parse().ok()?;
        let system: u64 = fields.get(12)?.parse().ok()?;
        Some(Self {
            name: name.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: user + system,
        })
    }
}
