//! The live page of the agent: the widgets of the HTML report, fed by server-sent events.
//!
//! The page contains no data: its script requests it, with a token if the agent requires one. Names
//! from traced programs arrive as JSON and are inserted as text only.

use super::{STYLE, packed_data, script};

const BODY: &str = include_str!("assets/live/live.html");

const LIVE_STYLE: &str = include_str!("assets/live/live.css");

/// Parts of the script, in dependency order; the first ones are those of the report.
const SCRIPTS: [&str; 13] = [
    include_str!("assets/base.js"),
    include_str!("assets/live/live_data.js"),
    include_str!("assets/format.js"),
    include_str!("assets/canvas.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/dense_bands.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/live/requests.js"),
    include_str!("assets/live/lists.js"),
    include_str!("assets/live/drill_down.js"),
    include_str!("assets/live/overview.js"),
    include_str!("assets/live/stream.js"),
    include_str!("assets/live/live_main.js"),
];

/// The page, and its content security policy, which is sent as a header.
pub struct LivePageFile {
    /// HTML.
    pub html: String,
    /// Policy: this script and style only, and requests to the agent only.
    pub policy: String,
}

/// Returns the live page.
pub fn live_page() -> LivePageFile {
    let (script, style) = (script(&SCRIPTS), format!("{STYLE}{LIVE_STYLE}"));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        packed_data::digest(&script),
        packed_data::digest(&style)
    );
    let html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>vramscope</title>\n<style>{style}</style>\n</head>\n{BODY}\n\
         <script>{script}</script>\n</body>\n</html>\n"
    );
    LivePageFile { html, policy }
}
