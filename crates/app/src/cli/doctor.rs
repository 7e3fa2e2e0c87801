//! Command-line options of `vramscope doctor`.

use std::path::PathBuf;

use clap::Args;

use super::FormatOptions;

pub(crate) const EXAMPLES: &str = "\
EXAMPLES
  vramscope doctor                         what works on this host, and what to change
  vramscope doctor --format json           the same for scripts
  vramscope doctor --bundle                also a file for a bug report

Run it as the user that traces: root, or one with the capabilities. It changes nothing.";

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) format: FormatOptions,
    /// Also write a redacted .tar.gz for a bug report [default: vramscope-doctor-DATE-TIME.tar.gz]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) bundle: Option<Option<PathBuf>>,
    /// Overwrite an existing file
    #[arg(long, requires = "bundle")]
    pub(crate) force: bool,
}
