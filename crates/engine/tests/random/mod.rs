//! Property tests with reproducible failures: see [`run`].
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test uses a part of it")]

#[path = "run.rs"]
mod run;

pub use run::{many, seed, seeds};

use std::any::Any;

use proptest::test_runner::{Config, FailurePersistence, PersistedSeed, RngSeed, TestRunner};

/// Default number of cases of a property. `PROPTEST_CASES` overrides it everywhere.
pub const CASES: u32 = 256;

/// Returns a configuration with this number of random cases.
pub fn config(cases: u32) -> Config {
    config_after(cases, &[])
}

/// Returns a configuration that runs cases that failed before first, as a failure prints them.
#[allow(clippy::print_stderr, reason = "shown where the test fails")]
pub fn config_after(cases: u32, failed: &'static [&'static str]) -> Config {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.rng_seed = RngSeed::Fixed(seed());
    config.failure_persistence = Some(Box::new(Failed(failed)));
    eprintln!("VRAMSCOPE_SEED={} repeats these cases", seed());
    config
}

/// Returns a runner that generates values outside a property.
pub fn runner() -> TestRunner {
    TestRunner::new(config(CASES))
}

/// Cases that failed before, kept in the source instead of a file that each run would write.
#[derive(Clone, PartialEq, Debug)]
struct Failed(&'static [&'static str]);

impl FailurePersistence for Failed {
    fn load_persisted_failures2(&self, _source_file: Option<&'static str>) -> Vec<PersistedSeed> {
        let parse = |text: &&str| text.parse();
        let parsed: Result<_, _> = self.0.iter().map(parse).collect();
        assert!(parsed.is_ok(), "one of {:?} is not a case seed", self.0);
        parsed.unwrap_or_default()
    }

    #[allow(clippy::print_stderr, reason = "shown with the failure")]
    fn save_persisted_failure2(
        &mut self,
        _source_file: Option<&'static str>,
        case: PersistedSeed,
        _shrunken: &dyn std::fmt::Debug,
    ) {
        eprintln!("to keep this case, name it in the test: config_after(cases, &[\"{case}\"])");
    }

    fn box_clone(&self) -> Box<dyn FailurePersistence> {
        Box::new(self.clone())
    }

    fn eq(&self, other: &dyn FailurePersistence) -> bool {
        other.as_any().downcast_ref::<Self>().is_some_and(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
