//! Reports for people and programs: text, JSON, charts and HTML.

pub mod advice;
pub mod analysis;
pub mod chart;
pub mod explain;
pub mod html;
pub mod incident;
pub mod kernels;
pub mod live;
pub mod measurement;
pub(crate) mod redact;
pub mod tables;
pub mod verdict;
pub mod view;
