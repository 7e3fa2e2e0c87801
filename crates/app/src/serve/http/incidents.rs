//! Folders of incidents: what is in them, and their files.

use hyper::StatusCode;
use hyper::header;
use serde_json::{Value, json};

use super::answer::{Answer, Content};
use super::files;
use crate::serve::incidents::IncidentView;

/// What one folder is about, and its files.
pub(super) fn manifest(incident: &IncidentView) -> Value {
    let files: Vec<Value> = files::list(&incident.folder)
        .into_iter()
        .map(|file| json!({ "name": file.name, "bytes": file.bytes }))
        .collect();
    let about = serde_json::to_value(incident).unwrap_or_default();
    json!({ "incident": about, "files": files })
}

/// One file of it. They hold whole call stacks, with the paths of programs.
pub(super) fn file(incident: &IncidentView, name: &str, show_paths: bool) -> Answer {
    if !show_paths {
        return Answer::error(
            StatusCode::FORBIDDEN,
            "files of incidents hold paths of programs",
            "set show_paths under [http] in the settings, or read them on the host",
        );
    }
    let Some(body) = files::open(&incident.folder, name) else {
        return Answer::error(
            StatusCode::NOT_FOUND,
            "the incident has no such file",
            "its files are listed under /api/v1/incidents/ID",
        );
    };
    let kind = match name.rsplit_once('.') {
        Some((_, "json")) => super::answer::JSON,
        Some((_, "txt")) => super::answer::TEXT,
        _ => "application/octet-stream",
    };
    Answer::new(StatusCode::OK, kind, Content::File(body))
        .with(header::CONTENT_DISPOSITION, "attachment")
}
