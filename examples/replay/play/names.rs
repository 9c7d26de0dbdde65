//! The routers that can be compared, and the words for them on the command line.

use warmroute::sim::fleet::POLICIES;

/// Whose router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Envoy's own load balancers.
    Envoy,
    /// Envoy with the filter.
    Warmroute,
    /// PyPI's `vllm-router`.
    VllmRouter,
    /// PyPI's `sglang-router`.
    SglangRouter,
}

impl Family {
    const ALL: [Self; 4] = [
        Self::Envoy,
        Self::Warmroute,
        Self::VllmRouter,
        Self::SglangRouter,
    ];

    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Warmroute => "warmroute",
            Self::VllmRouter => "vllm-router",
            Self::SglangRouter => "sglang-router",
        }
    }

    /// Its policies that are compared.
    pub fn policies(self) -> &'static [&'static str] {
        match self {
            Self::Envoy => &["round_robin", "least_request", "ring_hash"],
            Self::Warmroute => &POLICIES,
            Self::VllmRouter => &[
                "round_robin",
                "random",
                "power_of_two",
                "consistent_hash",
                "cache_aware",
            ],
            Self::SglangRouter => &["round_robin", "random", "power_of_two", "cache_aware"],
        }
    }
}

/// A router with one of its policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub family: Family,
    pub policy: &'static str,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.family.name(), self.policy)
    }
}

/// All of them, in the order of reports.
pub fn all() -> impl Iterator<Item = Name> {
    Family::ALL.into_iter().flat_map(|family| {
        let policies = family.policies().iter();
        policies.map(move |policy| Name { family, policy })
    })
}

/// The routers that one word names: `router/policy`, a router, or `all`.
///
/// # Errors
/// It names none; which words there are.
pub fn parse(word: &str) -> Result<Vec<Name>, String> {
    let named: Vec<Name> = all()
        .filter(|name| word == "all" || word == name.family.name() || word == name.to_string())
        .collect();
    if named.is_empty() {
        let names: Vec<String> = all().map(|name| name.to_string()).collect();
        return Err(format!(
            "there is no router {word:?}; there are all, envoy, warmroute, vllm-router, sglang-router, {}",
            names.join(", ")
        ));
    }
    Ok(named)
}

/// Joins lists in order, each router once.
pub fn join(lists: &[Vec<Name>]) -> Vec<Name> {
    let mut joined = Vec::new();
    for name in lists.iter().flatten() {
        if !joined.contains(name) {
            joined.push(*name);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_one_a_group_or_all() {
        let count = |word| parse(word).map(|names| names.len());
        assert_eq!(count("all"), Ok(22));
        assert_eq!(count("vllm-router"), Ok(5));
        assert_eq!(count("envoy/ring_hash"), Ok(1));
        let why = parse("envoy/prefix_hash").unwrap_err();
        assert!(why.starts_with("there is no router \"envoy/prefix_hash\"; there are all, envoy,"));
        assert!(why.contains("sglang-router/cache_aware"));
    }

    #[test]
    fn a_router_named_twice_runs_once_and_where_it_came_first() {
        let lists = ["warmroute/prefix_hash", "warmroute"].map(|word| parse(word).unwrap());
        let joined = join(&lists);
        assert_eq!(joined.len(), 10);
        assert_eq!(joined[0].to_string(), "warmroute/prefix_hash");
    }
}
