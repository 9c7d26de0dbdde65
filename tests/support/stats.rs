//! Reads Envoy's `/stats/prometheus`.

use std::collections::BTreeMap;

/// One line of the exposition.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, for histograms with its suffix.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value; NaN if it is no number.
    pub value: f64,
}

/// All metrics at one moment.
#[derive(Clone, Debug, Default)]
pub struct Stats(pub Vec<Sample>);

impl Stats {
    /// Reads an exposition; comments and broken lines are left out.
    pub fn parse(text: &str) -> Self {
        Self(
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(sample)
                .collect(),
        )
    }

    /// The samples of `name` that have all of `labels`.
    pub fn samples<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |s| {
            s.name == name
                && labels
                    .iter()
                    .all(|(k, v)| s.labels.get(*k).is_some_and(|l| l == v))
        })
    }

    /// The sum over the samples of `name` that have all of `labels`; 0 if there are none.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        // `sum` of nothing is -0.0.
        self.samples(name, labels).map(|s| s.value).sum::<f64>() + 0.0
    }

    /// Whether the metric is there at all.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|s| s.name == name)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.trim().rsplit_once(' ')?;
    let value = value.parse().unwrap_or(f64::NAN);
    let Some((name, rest)) = series.split_once('{') else {
        return Some(Sample {
            name: series.to_owned(),
            labels: BTreeMap::new(),
            value,
        });
    };
    let labels = labels(rest.strip_suffix('}')?);
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

fn labels(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => break,
                '\\' => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(other) => other,
                    None => break,
                }),
                _ => value.push(c),
            }
        }
        found.insert(name.trim_start_matches(',').to_owned(), value);
        text = chars.as_str();
    }
    found
}

#[test]
fn labels_and_values_are_read() {
    let stats = Stats::parse(
        "# TYPE warmroute_picks_total counter\n\
         warmroute_picks_total{endpoint=\"[::1]:80\",reason=\"a\\\"b,c=\"} 3\n\
         warmroute_picks_total{endpoint=\"b\",reason=\"home\"} 4\n\
         warmroute_watchdog_total 5\n",
    );
    assert_eq!(stats.metric("warmroute_picks_total", &[]), 7.0);
    assert_eq!(
        stats.metric("warmroute_picks_total", &[("reason", "a\"b,c=")]),
        3.0
    );
    assert_eq!(stats.metric("warmroute_watchdog_total", &[]), 5.0);
    assert!(!stats.has("warmroute_picks"));
}
