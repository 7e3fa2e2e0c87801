//! `vramscope export`: a file in the form of another tool.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use formats::export::allocations::{Allocations, Csv, Json};
use formats::export::exporter::Exporter;
use formats::export::handoff::Tables;

use super::input::{self, Input};
use crate::cli::{Export, ExportFormat};
use crate::newfile::NewFile;
use crate::{Outcome, output};

/// Runs the verb.
pub(crate) fn run(options: &Export) -> Result<Outcome> {
    let source = input::recognise(&options.file)?;
    match options.to {
        ExportFormat::Tsv => tables(options)?,
        ExportFormat::Csv | ExportFormat::Json => {
            one_file(options)?;
        }
    }
    Ok(Outcome::Fine)
}
