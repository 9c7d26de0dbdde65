//! What a router's processes use, as Linux shows it under `/proc`; elsewhere nothing is known.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use warmroute::sim::record::RouterCost;

/// Programs of the shell that guards a router; they are no part of it.
const GUARDS: [&str; 3] = ["sh", "cat", "sleep"];

/// What the processes started by `root`, itself included, have used so far.
pub fn of_tree(root: u32) -> Option<RouterCost> {
    let ticks_per_s = ticks_per_s()?;
    let all: Vec<Process> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect();
    let mut tree = vec![root];
    let mut cost = None;
    while let Some(pid) = tree.pop() {
        tree.extend(all.iter().filter(|p| p.parent == pid).map(|p| p.pid));
        let own = all.iter().find(|p| p.pid == pid);
        let Some(own) = own.filter(|p| !GUARDS.contains(&p.name.as_str())) else {
            continue;
        };
        let sum = cost.get_or_insert(RouterCost {
            cpu_us: 0,
            peak_rss_bytes: 0,
        });
        sum.cpu_us += own.cpu_ticks * 1_000_000 / ticks_per_s;
        sum.peak_rss_bytes += own.peak_rss_bytes;
    }
    cost
}

/// What was used between two looks at the same processes.
pub fn between(before: Option<RouterCost>, after: Option<RouterCost>) -> Option<RouterCost> {
    let (before, after) = (before?, after?);
    Some(RouterCost {
        cpu_us: after.cpu_us.checked_sub(before.cpu_us)?,
        peak_rss_bytes: after.peak_rss_bytes,
    })
}

/// What the machine has done so far, and this process of it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    busy_ticks: u64,
    all_ticks: u64,
    own_ticks: u64,
}

/// What the machine did between two looks; shares of all cores' time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// All there was to do.
    pub machine: f64,
    /// What this process did of it: the client and, if there are any, the mock replicas.
    pub own: f64,
}

impl Machine {
    /// The machine now.
    pub fn now() -> Option<Self> {
        let own = Process::read(std::process::id())?;
        Self::parse(&fs::read_to_string("/proc/stat").ok()?, own.cpu_ticks)
    }

    fn parse(stat: &str, own_ticks: u64) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .filter_map(|ticks| ticks.parse().ok())
            .collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let all_ticks: u64 = ticks.iter().sum();
        Some(Self {
            busy_ticks: all_ticks.checked_sub(idle)?,
            all_ticks,
            own_ticks,
        })
    }

    /// What was done since `before`.
    pub fn since(self, before: Self) -> Busy {
        let all = self.all_ticks.saturating_sub(before.all_ticks).max(1) as f64;
        let share = |after: u64, before: u64| after.saturating_sub(before) as f64 / all;
        Busy {
            machine: share(self.busy_ticks, before.busy_ticks),
            own: share(self.own_ticks, before.own_ticks),
        }
    }
}

/// Some fields of `/proc/PID/stat` and `/proc/PID/status`.
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    cpu_ticks: u64,
    peak_rss_bytes: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        // One that has ended meanwhile is none of the router's.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Self::parse(pid, &stat, &status)
    }

    /// The name stands in parentheses and may hold any others; fields are counted behind it.
    fn parse(pid: u32, stat: &str, status: &str) -> Option<Self> {
        let (before, fields) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|kilobytes| kilobytes.split_whitespace().next()?.parse::<u64>().ok());
        Some(Self {
            pid,
            parent: u32::try_from(number(1)?).ok()?,
            name: name.to_owned(),
            cpu_ticks: number(11)? + number(12)?,
            peak_rss_bytes: peak.unwrap_or_default() * 1_024,
        })
    }
}

fn ticks_per_s() -> Option<u64> {
    static TICKS: OnceLock<Option<u64>> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let output = Command::new("getconf").arg("CLK_TCK").output().ok()?;
        let ticks = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
        (ticks > 0).then_some(ticks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "77 (a) b (c)) S 12 77 77 0 -1 4194304 1 2 3 4 500 25 6 7 20 0 9 0 100 1 2";
        let status = "Name:\tx\nVmHWM:\t    2048 kB\n";
        let process = Process::parse(77, stat, status).unwrap();
        assert_eq!(process.parent, 12);
        assert_eq!(process.name, "a) b (c)");
        assert_eq!(process.cpu_ticks, 525);
        assert_eq!(process.peak_rss_bytes, 2_048 * 1_024);
    }

    #[test]
    fn time_spent_waiting_is_idle() {
        let before = Machine::parse("cpu  10 0 10 60 20 0 0 0 0 0\n", 5).unwrap();
        let after = Machine::parse("cpu  40 0 20 90 50 0 0 0 0 0\n", 15).unwrap();
        let busy = after.since(before);
        assert!((busy.machine - 0.4).abs() < 1e-9, "{busy:?}");
        assert!((busy.own - 0.1).abs() < 1e-9, "{busy:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn own_processes_have_used_memory_and_the_guard_does_not_count() {
        let cost = of_tree(std::process::id()).unwrap();
        assert!(cost.peak_rss_bytes > 1 << 20, "{cost:?}");
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 5; true"])
            .spawn()
            .unwrap();
        assert_eq!(of_tree(shell.id()), None);
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
