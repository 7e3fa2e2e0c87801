//! CUDA objects as text.

use std::io::{self, Write};

use engine::snapshot::{ObjectView, ProcessView, SiteObjectView, SiteView};

use super::sites;
use crate::report::text_page::TextPage;
use crate::report::verdict::objects;

/// Writes the objects of a process: live ones, or those never destroyed.
pub(super) fn of_process(out: &mut TextPage<'_>, view: &ProcessView) -> io::Result<()> {
    let part = |view: &ObjectView| {
        let created = if view.created > view.live {
            format!(" (created {})", view.created)
        } else {
            String::new()
        };
        format!("{}{created}", objects(view.kind, view.live))
    };
    let live = view.objects.iter().filter(|view| view.live > 0);
    let parts: Vec<_> = live.map(part).collect();
    let label = if view.ended.is_some() { "objects never destroyed" } else { "objects" };
    if !parts.is_empty() {
        writeln!(out, "  {label}: {}", parts.join(", "))?;
    }
    let untracked: u64 = view.objects.iter().map(|view| view.untracked).sum();
    if untracked > 0 {
        writeln!(out, "    {untracked} of them are not attributed to a site")?;
    }
    let lost = view.uncertainty.lost.objects;
    if lost > 0 {
        let text = format!("{lost} object events lost: counts may be off by that much");
        writeln!(out, "  {}", out.style.warning(&text))?;
    }
    if view.ended.is_some() { never_destroyed(out, view) } else { Ok(()) }
}

fn live(site: &SiteView) -> impl Iterator<Item = &SiteObjectView> {
    site.objects.iter().filter(|view| view.live > 0)
}

fn never_destroyed(out: &mut TextPage<'_>, view: &ProcessView) -> io::Result<()> {
    let mut holders: Vec<_> =
        view.sites.iter().filter(|site| live(site).next().is_some()).collect();
    let number = |site: &SiteView| live(site).map(|view| view.live).fold(0, u64::saturating_add);
    holders.sort_by_key(|site| std::cmp::Reverse(number(site)));
    for site in holders {
        let parts: Vec<_> = live(site).map(|view| objects(view.kind, view.live)).collect();
        writeln!(out, "    {}, created at", parts.join(", "))?;
        sites::stack(out, site, "      ")?;
    }
    Ok(())
}

/// Writes the header of a site that only has objects.
pub(super) fn heading(out: &mut TextPage<'_>, site: &SiteView) -> io::Result<()> {
    let parts: Vec<_> = site.objects.iter().map(|view| objects(view.kind, view.live)).collect();
    let all = |of: fn(&SiteObjectView) -> u64| {
        site.objects.iter().map(of).fold(0_u64, u64::saturating_add)
    };
    let (created, destroyed) = (all(|view| view.created), all(|view| view.destroyed));
    let live = out.style.bold(&format!("LIVE: {}", parts.join(", ")));
    let counts = out.style.dim(&format!("({created} created, {destroyed} destroyed)"));
    writeln!(out, "{live}  {counts}")
}

/// Writes the objects of a site that also has memory.
pub(super) fn of_site(out: &mut TextPage<'_>, site: &SiteView, indent: &str) -> io::Result<()> {
    if site.objects.is_empty() {
        return Ok(());
    }
    let part = |view: &SiteObjectView| {
        let live = objects(view.kind, view.live);
        format!("{live} ({} created, {} destroyed)", view.created, view.destroyed)
    };
    let parts: Vec<_> = site.objects.iter().map(part).collect();
    writeln!(out, "{indent}objects: {}", parts.join(", "))
}
