//! Random tests can be repeated by the seed of their run and by the failed case.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::random;

const CASE: &str = "cc 7d3c1b0aa5e4f2967d3c1b0aa5e4f2967d3c1b0aa5e4f2967d3c1b0aa5e4f296";

/// Returns the values that a property receives.
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
fn seed_repeats_its_cases() {
    let first = seen(random::config(20));
    assert_eq!(first, seen(random::config(20)));
    let draw = || any::<u64>().new_tree(&mut random::runner()).unwrap().current();
    assert_eq!(draw(), draw());
    assert_eq!(random::many(3).collect::<Vec<_>>()[0], random::seed());
    assert_eq!(random::seeds(&[1, 2]).last(), Some(&random::seed()));
}

#[test]
fn failed_cases_run_first() {
    let cases = seen(random::config(20));
    let after = seen(random::config_after(20, &[CASE]));
    assert_eq!(after.len(), cases.len() + 1);
    assert_eq!(after[1..], cases);
    assert_eq!(after[0], seen(random::config_after(1, &[CASE]))[0]);
}

#[test]
#[should_panic(expected = "is not a case seed")]
fn unreadable_case_is_an_error() {
    seen(random::config_after(1, &["cc 12"]));
}
