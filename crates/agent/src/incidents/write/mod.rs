//! Writes incidents to disk: directories, HTML reports, retention.

pub(super) mod directory;
pub(super) mod host_facts;
pub(super) mod html;
pub(super) mod recording;
pub(super) mod untraced_holders;
pub(super) mod write_error;
pub(super) mod writer;
