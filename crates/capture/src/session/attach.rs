//! Links between functions of a library and the programs.

use std::path::Path;

use engine::ids::Pid;
use libbpf_rs::{Link, UprobeMultiOpts, UprobeOpts};

use super::object::{Loaded, Serves, programs};
use crate::error::Error;
use crate::plan::Tier;

/// A place to probe: offset in the file and cookie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
}

/// What keeps probes in place; dropping it removes them.
pub(crate) struct Attachment {
    _links: Vec<Link>,
    // On kernels without cookies each function has its own programs.
    _programs: Vec<Loaded>,
}

/// Every process.
const ANY: i32 = -1;

/// Attaches to all places of a file, for one process or for all.
pub(crate) fn attach(
    loaded: &Loaded,
    file: &Path,
    name: &Path,
    places: &[Place],
    serves: Serves,
    only: Option<Pid>,
) -> Result<Attachment, Error> {
    let tier = loaded.knobs.tier;
    let pid = only.map_or(ANY, |pid| pid.0.cast_signed());
    let failed = |error: libbpf_rs::Error| Error::Attach {
        path: name.to_owned(),
        tier,
        cause: error.into(),
    };
    let (enter, leave) = programs(tier, serves);
    let mut attachment = Attachment { _links: Vec::new(), _programs: Vec::new() };
    if places.is_empty() {
        return Ok(attachment);
    }
    match tier {
        Tier::Session | Tier::Multi => {
            for (program, retprobe) in [(Some(enter), false), (leave, true)] {
                let Some(program) = program else { continue };
                let options = UprobeMultiOpts {
                    offsets: places.iter().map(|place| place.offset as usize).collect(),
                    cookies: places.iter().map(|place| place.cookie).collect(),
                    retprobe,
                    session: tier == Tier::Session && serves.both_sides(),
                    ..UprobeMultiOpts::default()
                };
                let link = loaded
                    .program(program)?
                    .attach_uprobe_multi_with_opts(pid, file, "", options)
                    .map_err(failed)?;
                attachment._links.push(link);
            }
        }
        Tier::Single => {
            for place in places {
                attachment._links.extend(pair(loaded, file, *place, serves, &failed)?);
            }
        }
        Tier::Constant => {
            for place in places {
                let programs = loaded.for_hook(place.cookie as usize, serves)?;
                let place = Place { cookie: 0, ..*place };
                attachment._links.extend(pair(&programs, file, place, serves, &failed)?);
                attachment._programs.push(programs);
            }
        }
    }
    Ok(attachment)
}

/// A single probe on each side of one function. The return side is attached first, so that no
/// entry goes without its return.
fn pair(
    loaded: &Loaded,
    file: &Path,
    place: Place,
    serves: Serves,
    failed: &impl Fn(libbpf_rs::Error) -> Error,
) -> Result<Vec<Link>, Error> {
    let (enter, leave) = programs(loaded.knobs.tier, serves);
    let mut links = Vec::new();
    for (program, retprobe) in [(leave, true), (Some(enter), false)] {
        let Some(program) = program else { continue };
        let options = UprobeOpts { cookie: place.cookie, retprobe, ..UprobeOpts::default() };
        let link = loaded
            .program(program)?
            .attach_uprobe_with_opts(ANY, file, place.offset as usize, options)
            .map_err(failed)?;
        links.push(link);
    }
    Ok(links)
}
