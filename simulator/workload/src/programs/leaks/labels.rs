//! The labels of the scenarios, and the half of the corpus that each belongs to.

use super::scenario_thread::ScenarioThread;
use super::{frameworks, healthy, leaking};
use crate::cuda::Driver;
use crate::programs::torch;

/// The group of a scenario. Each group is split into halves separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Leaks of device memory that grow in different ways.
    Shape,
    /// Leaks that are hidden by something.
    Hidden,
    /// Leaks of other kinds of memory.
    Kind,
    /// Leaks of objects.
    Object,
    /// Leaks that are freed when the program ends.
    Exit,
    /// Leaks of several resources by one function.
    Together,
    /// Leaks of PyTorch's cache and of its tensors.
    Segments,
    /// Leaks of frameworks and libraries.
    Framework,
    /// Leaks of tensors among so many that their call stacks are sampled.
    Tensors,
    /// Healthy: caches.
    Cache,
    /// Healthy: growth that ends.
    Growth,
    /// Healthy: allocations that are freed.
    Churn,
    /// Healthy: objects.
    HealthyObject,
    /// Healthy: memory that is freed when the program ends.
    HealthyExit,
    /// Healthy: several resources of one function.
    HealthyTogether,
    /// Healthy: PyTorch's cache and its tensors.
    HealthySegments,
    /// Healthy: frameworks and libraries.
    HealthyFramework,
    /// Healthy: many tensors.
    HealthyTensors,
}

impl Group {
    const fn name(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Hidden => "hidden",
            Self::Kind => "kind",
            Self::Object => "object",
            Self::Exit => "exit",
            Self::Together => "together",
            Self::Segments => "segments",
            Self::Framework => "framework",
            Self::Cache => "cache",
            Self::Growth => "growth",
            Self::Churn => "churn",
            Self::HealthyObject => "healthy-object",
            Self::HealthyExit => "healthy-exit",
            Self::HealthyTogether => "healthy-together",
            Self::HealthySegments => "healthy-segments",
            Self::HealthyFramework => "healthy-framework",
            Self::Tensors => "tensors",
            Self::HealthyTensors => "healthy-tensors",
        }
    }
}

/// A half of the corpus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// For tuning the classifier.
    Tune,
    /// For testing it with data that it was not tuned with.
    HeldOut,
}

/// A leak of a scenario.
pub(super) struct Leak {
    /// The function that allocates it.
    pub(super) function: &'static str,
    /// `memory`, `tensors` or `objects`.
    pub(super) subject: &'static str,
    /// The kind of memory or object.
    pub(super) kind: &'static str,
}

/// Labels a leak of memory.
pub(super) const fn memory(function: &'static str, kind: &'static str) -> Leak {
    Leak { function, subject: "memory", kind }
}

/// Labels a leak of objects.
pub(super) const fn objects(function: &'static str, kind: &'static str) -> Leak {
    Leak { function, subject: "objects", kind }
}

/// Labels a leak of tensors.
pub(super) const fn tensors(function: &'static str) -> Leak {
    Leak { function, subject: "tensors", kind: "torch" }
}

/// A healthy function, with its accepted verdicts.
pub(super) type HealthySite = (&'static str, &'static [&'static str]);

/// Accepted verdicts of buffers that are freed soon.
pub(super) const SHORT_LIVED: &[&str] =
    &["cache", "periodic", "plateau", "burst", "not_enough_data"];

/// Accepted verdicts of memory that does not leak.
pub(super) const HEALTHY: &[&str] =
    &["cache", "periodic", "plateau", "burst", "ramp_up", "not_enough_data"];

/// Library that scenarios with tensors need.
pub(super) const TORCH: &str = "libc10_cuda.so";

/// A scenario with its labels, for a run of `seconds`.
pub(super) struct Scenario {
    pub(super) group: Group,
    pub(super) name: &'static str,
    pub(super) seconds: u32,
    pub(super) about: &'static str,
    pub(super) leaks: &'static [Leak],
    pub(super) others: &'static [HealthySite],
    /// Functions that not every driver has, or [`TORCH`].
    pub(super) needs: &'static [&'static str],
    pub(super) run: fn(&mut ScenarioThread) -> anyhow::Result<()>,
}

/// Returns every scenario.
pub(super) fn all() -> impl Iterator<Item = &'static Scenario> {
    leaking::SCENARIOS.iter().chain(healthy::SCENARIOS).chain(frameworks::SCENARIOS)
}

/// Returns the 64-bit FNV-1a hash.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the half of a scenario: of each group, by the hash of their names, the first, third and
/// so on are for tuning, and the others are held out. The rule depends on names alone. A new
/// scenario goes into a new group, so that no other one changes halves.
pub(super) fn half(scenario: &Scenario) -> Split {
    let hash = fnv(scenario.name);
    let group = all().filter(|other| other.group == scenario.group);
    let before = group.filter(|other| fnv(other.name) < hash).count();
    if before.is_multiple_of(2) { Split::Tune } else { Split::HeldOut }
}

/// Formats a list of strings as JSON; none of them needs escaping.
fn strings<'a>(list: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<_> = list.into_iter().map(|text| format!("\"{text}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Formats the labels as one JSON array, one object per line. With a driver it also lists the
/// functions of a scenario that the driver lacks.
pub(super) fn list(driver: Option<&Driver>) -> String {
    let lines: Vec<_> = all().map(|scenario| line(scenario, driver)).collect();
    format!("[\n{}\n]", lines.join(",\n"))
}

fn line(scenario: &Scenario, driver: Option<&Driver>) -> String {
    let half = match half(scenario) {
        Split::Tune => "tune",
        Split::HeldOut => "held-out",
    };
    let leaks = scenario.leaks.iter().map(|leak| {
        let Leak { function, subject, kind } = leak;
        format!(
            "{{\"function\": \"{function}\", \"subject\": \"{subject}\", \"kind\": \"{kind}\"}}"
        )
    });
    let others = scenario.others.iter().map(|(function, verdicts)| {
        let verdicts = strings(verdicts.iter().copied());
        format!("{{\"function\": \"{function}\", \"verdicts\": {verdicts}}}")
    });
    let (leaks, others): (Vec<_>, Vec<_>) = (leaks.collect(), others.collect());
    let missing = driver.map_or_else(
        || "null".to_owned(),
        |driver| {
            let has = |name: &str| match name {
                TORCH => torch::is_available(),
                name => driver.has(name),
            };
            strings(scenario.needs.iter().copied().filter(|name| !has(name)))
        },
    );
    format!(
        "{{\"name\": \"{}\", \"half\": \"{half}\", \"group\": \"{}\", \"seconds\": {}, \"about\": \"{}\", \
         \"leaks\": [{}], \"others\": [{}], \"missing\": {missing}}}",
        scenario.name,
        scenario.group.name(),
        scenario.seconds,
        scenario.about,
        leaks.join(", "),
        others.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GROUPS: [Group; 18] = [
        Group::Shape,
        Group::Hidden,
        Group::Kind,
        Group::Object,
        Group::Cache,
        Group::Growth,
        Group::Churn,
        Group::HealthyObject,
        Group::Exit,
        Group::Together,
        Group::Segments,
        Group::HealthyExit,
        Group::HealthyTogether,
        Group::HealthySegments,
        Group::Framework,
        Group::HealthyFramework,
        Group::Tensors,
        Group::HealthyTensors,
    ];

    /// The held-out half, from before the verdicts were tuned with the other half.
    const HELD_OUT: &str = "epoch-leak small-beside-big growing-leak leak-after-warm-up checkpoint-leak \
         error-path-leak unbounded-cache hand-over-leak subscription-leak rising-floor \
         behind-shrinking async-leak pinned-leak managed-leak graph-exec-leak module-leak \
         pool-leak context-leak destructor-leak plan-leak private-pool-leak failed-capture-leak \
         growing-cache generation-cache emptied-cache warm-up \
         slow-start staging-pool more-clients rare-shapes ping-pong long-sawtooth \
         mixed-sizes random-walk sessions prefetch tides event-pool lazy-modules ring-until-exit \
         plan-cache many-shapes \
         uncollected-ipc-leak shared-memory-leak out-of-memory-retry received-memory shared-memory streams-that-finish \
         tiny-tensor-leak tensor-cache";

    #[test]
    fn scenario_names_are_unique() {
        let names: BTreeSet<_> = all().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn hash_matches_fnv_test_vectors() {
        // Test vectors of its authors.
        assert_eq!(fnv(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn both_halves_contain_every_group() {
        for group in GROUPS {
            let count = |split| {
                let group = all().filter(|scenario| scenario.group == group);
                group.filter(|scenario| half(scenario) == split).count()
            };
            let (tune, held_out) = (count(Split::Tune), count(Split::HeldOut));
            assert!(held_out > 0 && (tune == held_out || tune == held_out + 1), "{group:?}");
        }
    }

    #[test]
    fn held_out_split_is_frozen() {
        let held_out =
            all().filter(|scenario| half(scenario) == Split::HeldOut).map(|scenario| scenario.name);
        assert_eq!(held_out.collect::<Vec<_>>().join(" "), HELD_OUT);
    }

    #[test]
    fn groups_are_leaking_or_healthy() {
        for scenario in all() {
            let leaking = [
                Group::Shape,
                Group::Hidden,
                Group::Kind,
                Group::Object,
                Group::Exit,
                Group::Together,
                Group::Segments,
                Group::Framework,
                Group::Tensors,
            ]
            .contains(&scenario.group);
            assert_eq!(!scenario.leaks.is_empty(), leaking, "{}", scenario.name);
        }
    }
}
