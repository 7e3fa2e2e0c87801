//! Reports for people and programs: text, JSON, charts and HTML.

pub mod advice;
pub mod analysis;
pub mod chart;
pub mod explain;
pub(crate) mod frame_json;
pub mod html;
pub mod incident;
pub(crate) mod json_objects;
pub mod kernels;
pub mod live;
pub mod measurement;
pub(crate) mod redact;
pub mod tables;
pub(crate) mod text_page;
pub mod verdict;
pub mod view;
