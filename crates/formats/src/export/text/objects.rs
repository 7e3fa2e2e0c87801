//! Objects that are no memory, for people.

use std::io::{self, Write};

use engine::object::ObjectKind;
use engine::snapshot::{ObjectView, ProcessView, SiteObjectView, SiteView};

use super::{Style, sites};

/// `1 stream`, `2 streams`.
fn count(number: u64, kind: ObjectKind) -> String {
    let (one, many) = match kind {
        ObjectKind::Stream => ("stream", "streams"),
        ObjectKind::Event => ("event", "events"),
        ObjectKind::Graph => ("graph", "graphs"),
        ObjectKind::GraphExec => ("executable graph", "executable graphs"),
        ObjectKind::Module => ("module", "modules"),
        ObjectKind::Library => ("library", "libraries"),
        ObjectKind::Context => ("context", "contexts"),
        ObjectKind::GreenContext => ("green context", "green contexts"),
        ObjectKind::Texture => ("texture", "textures"),
        ObjectKind::Surface => ("surface", "surfaces"),
        ObjectKind::Pool => ("pool", "pools"),
        ObjectKind::Linker => ("linker", "linkers"),
    };
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Programs keep code and contexts to their end: where they came from is not worth a stack.
const fn is_worth_a_stack(kind: ObjectKind) -> bool {
    !matches!(
        kind,
        ObjectKind::Module | ObjectKind::Library | ObjectKind::Context | ObjectKind::GreenContext
    )
}

/// What a process has, or had to its end.
pub(super) fn of_process(out: &mut dyn Write, view: &ProcessView, style: Style) -> io::Result<()> {
    let part = |view: &ObjectView| {
        let of = if view.created > view.live {
            format!(" (created {})", view.created)
        } else {
            String::new()
        };
        format!("{}{of}", count(view.live, view.kind))
    };
    let held = view.objects.iter().filter(|view| view.live > 0);
    let parts: Vec<_> = held.map(part).collect();
    let word = if view.ended.is_some() { "objects never destroyed" } else { "objects" };
    if !parts.is_empty() {
        writeln!(out, "  {word}: {}", parts.join(", "))?;
    }
    let untracked: u64 = view.objects.iter().map(|view| view.untracked).sum();
    if untracked > 0 {
        writeln!(out, "    {untracked} of them are not attributed to a site")?;
    }
    let lost = view.certainty.lost.objects;
    if lost > 0 {
        let text = format!("{lost} object events lost: counts may be off by that much");
        writeln!(out, "  {}", style.paint("33", &text))?;
    }
    if view.ended.is_some() { never_destroyed(out, view, style) } else { Ok(()) }
}

fn live(site: &SiteView) -> impl Iterator<Item = &SiteObjectView> {
    site.objects.iter().filter(|view| view.live > 0)
}

fn never_destroyed(out: &mut dyn Write, view: &ProcessView, style: Style) -> io::Result<()> {
    let worth = |site: &&SiteView| live(site).any(|view| is_worth_a_stack(view.kind));
    let mut holders: Vec<_> = view.sites.iter().filter(worth).collect();
    let number = |site: &SiteView| live(site).map(|view| view.live).fold(0, u64::saturating_add);
    holders.sort_by_key(|site| std::cmp::Reverse(number(site)));
    for site in holders {
        let parts: Vec<_> = live(site).map(|view| count(view.live, view.kind)).collect();
        writeln!(out, "    {}, created at", parts.join(", "))?;
        sites::stack(out, site, "      ", style)?;
    }
    Ok(())
}

/// The heading of a site that has nothing but objects.
pub(super) fn heading(out: &mut dyn Write, site: &SiteView, style: Style) -> io::Result<()> {
    let parts: Vec<_> = site.objects.iter().map(|view| count(view.live, view.kind)).collect();
    let all = |of: fn(&SiteObjectView) -> u64| {
        site.objects.iter().map(of).fold(0_u64, u64::saturating_add)
    };
    let (created, destroyed) = (all(|view| view.created), all(|view| view.destroyed));
    let live = style.bold(&format!("LIVE: {}", parts.join(", ")));
    let counts = style.dim(&format!("({created} created, {destroyed} destroyed)"));
    writeln!(out, "{live}  {counts}")
}

/// The line of a site that has memory, too.
pub(super) fn of_site(out: &mut dyn Write, site: &SiteView, indent: &str) -> io::Result<()> {
    if site.objects.is_empty() {
        return Ok(());
    }
    let part = |view: &SiteObjectView| {
        let live = count(view.live, view.kind);
        format!("{live} ({} created, {} destroyed)", view.created, view.destroyed)
    };
    let parts: Vec<_> = site.objects.iter().map(part).collect();
    writeln!(out, "{indent}objects: {}", parts.join(", "))
}
