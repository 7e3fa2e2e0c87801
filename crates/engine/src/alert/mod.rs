//! Alerts: rules over figures, and what they come to as time passes.
//!
//! A [`Rule`] names a metric and a limit. The [`Book`] is shown all figures every now and then; an alert
//! is what one rule finds of one set of labels, from its beginning to its end. Nothing here reads a
//! clock or tells anybody: that is for whoever asks.

mod book;
pub mod builtin;
mod history;
mod rule;
mod words;

pub use book::{Alert, Book, Transition};
pub use rule::{Limit, Measure, Rule, Severity};
pub use words::placeholders;
