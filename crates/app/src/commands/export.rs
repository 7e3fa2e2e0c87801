//! `vramscope export`: a file in the form of another tool.

use std::fs::{File, create_dir_all};
use std::io::{self, BufWriter};

use anyhow::{Context, Result};
use formats::export::handoff::Tables;

use super::input;
use crate::cli::{Export, ExportFormat};
use crate::{Outcome, output};

/// Runs the verb.
pub(crate) fn run(options: &Export) -> Result<Outcome> {
    match options.to {
        ExportFormat::Tsv => tables(options),
    }
}

fn tables(options: &Export) -> Result<Outcome> {
    input::recognise(&options.file)?;
    let folder = &options.output;
    create_dir_all(folder).with_context(|| {
        format!("cannot make the folder {}; choose another one", folder.display())
    })?;
    let file = |name: &str| -> Result<BufWriter<File>> {
        Ok(BufWriter::new(output::create(&folder.join(name))?))
    };
    let failed = || format!("cannot write into {}", folder.display());
    let mut tables = Tables::new(file("valid.tsv")?, file("invalid.tsv")?, file("driver.tsv")?)
        .with_context(failed)?;
    // A reader cannot be stopped, so the first failure is kept.
    let mut written: io::Result<()> = Ok(());
    input::read(&options.file, input::only(&options.part), &mut |change, facts| {
        if written.is_ok() {
            written = tables.change(change, &facts.stacks, facts.origin());
        }
    })?;
    written.and_then(|()| tables.finish()).with_context(failed)?;
    if tables.left_out > 0 {
        output::complain(&format!(
            "{} changes of what pools reserve were left out; what is allocated from them is there",
            tables.left_out
        ));
    }
    Ok(Outcome::Fine)
}
