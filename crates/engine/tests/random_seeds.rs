//! Random tests can be repeated: by the seed of their run, and by the case that failed.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod random;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

const CASE: &str = "cc 7d3c1b0aa5e4f2967d3c1b0aa5e4f2967d3c1b0aa5e4f2967d3c1b0aa5e4f296";

/// What a property gets to see.
fn seen(config: Config) -> Vec<u64> {
    let all = RefCell::new(Vec::new());
    let result = TestRunner::new(config).run(&any::<u64>(), |value| {
        all.borrow_mut().push(value);
        Ok(())
    });
    result.unwrap();
    all.into_inner()
}

#[test]
fn a_seed_repeats_its_cases() {
    let first = seen(random::config(20));
    assert_eq!(first, seen(random::config(20)));
    let draw = || any::<u64>().new_tree(&mut random::runner()).unwrap().current();
    assert_eq!(draw(), draw());
    assert_eq!(random::many(3).collect::<Vec<_>>()[0], random::seed());
    assert_eq!(random::seeds(&[1, 2]).last(), Some(&random::seed()));
}

#[test]
fn cases_that_failed_come_first() {
    let usual = seen(random::config(20));
    let after = seen(random::config_after(20, &[CASE]));
    assert_eq!(after.len(), usual.len() + 1);
    assert_eq!(after[1..], usual);
    assert_eq!(after[0], seen(random::config_after(1, &[CASE]))[0]);
}

#[test]
#[should_panic(expected = "is not the seed of a case")]
fn a_case_that_cannot_be_read_is_not_passed_over() {
    seen(random::config_after(1, &["cc 12"]));
}
