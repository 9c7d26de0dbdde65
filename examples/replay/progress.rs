//! A bar for the run under way, with the time that is left; a line for each run that is over where there
//! is no terminal.

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};
use warmroute::sim::record::Run;

/// How far the comparison has come.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    all: usize,
    over: usize,
}

impl Progress {
    /// Of `all` runs, none is over.
    pub fn new(all: usize) -> Self {
        Self {
            begun: Instant::now(),
            all,
            over: 0,
        }
    }

    /// A bar for the next run.
    pub fn run(&self, name: &str, requests: usize) -> ProgressBar {
        let style = ProgressStyle::with_template(
            "{prefix} {msg} {wide_bar} {pos}/{len} requests, {eta} left",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        let left = match self.left() {
            Some(left) => format!(
                "[{}/{}, {} in all]",
                self.over + 1,
                self.all,
                HumanDuration(left)
            ),
            None => format!("[{}/{}]", self.over + 1, self.all),
        };
        ProgressBar::new(requests as u64)
            .with_style(style)
            .with_prefix(left)
            .with_message(name.to_owned())
    }

    /// For the runs that are not over, at the pace so far.
    fn left(&self) -> Option<Duration> {
        let over = u32::try_from(self.over).ok().filter(|over| *over > 0)?;
        let each = self.begun.elapsed() / over;
        Some(each * u32::try_from(self.all - self.over).unwrap_or(u32::MAX))
    }

    /// Removes the bar; what went wrong is told at once.
    pub fn is_over(&mut self, bar: &ProgressBar, run: &Run) {
        self.over += 1;
        bar.finish_and_clear();
        let name = bar.message();
        let of = format!("[{}/{}] {name}", self.over, self.all);
        let mut errors = run.served.iter().filter_map(|served| served.error.as_ref());
        if let Some(why) = &run.failed {
            eprintln!("{of}: {why}");
        } else if let Some(first) = errors.next() {
            let all = 1 + errors.count();
            eprintln!(
                "{of}: {all} of {} requests failed, the first: {first}",
                run.served.len()
            );
        } else if bar.is_hidden() {
            let took = bar.elapsed().as_secs_f64();
            eprintln!("{of}: {} requests in {took:.1} s", run.served.len());
        }
    }
}
