//! Alerts: rules over metrics, and the state of each alert over time.
//!
//! A [`Rule`] names a metric and a threshold. The [`AlertEvaluator`] is given all metrics at
//! regular intervals; an alert is one rule with one set of labels, from pending to resolved. This
//! module reads no clock and sends no notifications: the caller does.

pub mod builtin;
mod evaluator;
mod rule;
mod series_history;
mod template;

pub use evaluator::{Alert, AlertEvaluator, Transition};
pub use rule::{Rule, RuleExpr, Severity, Threshold};
pub use template::pieces;
