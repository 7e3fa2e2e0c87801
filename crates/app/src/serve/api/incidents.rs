//! Incidents: their contents and files.

use hyper::StatusCode;
use hyper::header;
use serde_json::{Value, json};

use super::files;
use super::response::{ApiResponse, ResponseBody};
use crate::serve::incidents::IncidentView;

/// Returns an incident and its files.
pub(super) fn manifest(incident: &IncidentView) -> Value {
    let files: Vec<Value> = files::list(&incident.dir)
        .into_iter()
        .map(|file| json!({ "name": file.name, "bytes": file.bytes }))
        .collect();
    let summary = serde_json::to_value(incident).unwrap_or_default();
    json!({ "incident": summary, "files": files })
}

/// Returns one file. Files contain full call stacks, with paths of programs.
pub(super) fn file(incident: &IncidentView, name: &str, show_paths: bool) -> ApiResponse {
    if !show_paths {
        return ApiResponse::error(
            StatusCode::FORBIDDEN,
            "incident files contain paths of programs",
            "set show_paths in [http], or read them on the host",
        );
    }
    let Some(body) = files::open(&incident.dir, name) else {
        return ApiResponse::error(
            StatusCode::NOT_FOUND,
            "no such file in this incident",
            "see /api/v1/incidents/ID for its files",
        );
    };
    let kind = match name.rsplit_once('.') {
        Some((_, "json")) => super::response::CONTENT_TYPE_JSON,
        Some((_, "txt")) => super::response::CONTENT_TYPE_TEXT,
        _ => "application/octet-stream",
    };
    ApiResponse::new(StatusCode::OK, kind, ResponseBody::File(body))
        .with(header::CONTENT_DISPOSITION, "attachment")
}

#[cfg(test)]
mod tests {
    use hyper::body::Body;

    use super::*;

    #[test]
    fn files_are_served_only_with_show_paths() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("summary.txt"), "out of memory").unwrap();
        let incident = IncidentView {
            id: "x".into(),
            trigger: "threshold",
            cause: String::new(),
            time: String::new(),
            pid: None,
            process: String::new(),
            requested_bytes: None,
            gpu: None,
            summary: String::new(),
            size_bytes: 13,
            written_after_ms: 0,
            written: true,
            summary_text: None,
            dir: dir.path().into(),
        };
        let files = &manifest(&incident)["files"];
        assert_eq!(*files, json!([{ "name": "summary.txt", "bytes": 13 }]));
        assert_eq!(file(&incident, "summary.txt", false).status(), 403);
        let found = file(&incident, "summary.txt", true).finish();
        assert_eq!((found.status().as_u16(), found.body().size_hint().exact()), (200, Some(13)));
        assert_eq!(found.headers()[header::CONTENT_DISPOSITION], "attachment");
        for name in ["../summary.txt", "", ".", "..", "other.txt"] {
            assert_eq!(file(&incident, name, true).status(), 404, "{name}");
        }
    }
}
