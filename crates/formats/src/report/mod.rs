//! Reports for people and programs: text, JSON, charts and HTML.

pub mod advice;
pub mod analysis;
pub mod chart;
pub mod html;
pub mod incident;
pub mod kernels;
pub mod live;
pub(crate) mod redact;
pub mod verdict;
