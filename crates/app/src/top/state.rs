//! What the reader has chosen: screen, selection, order, filter, pause.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use engine::model::{ProcessKey, SiteName};
use engine::view::{GroupBy, ProcessOrder, SiteOrder};
use formats::report::tables::processes::ProcessColumn;

use super::frame::{FrameHistory, HeldFrame, TopFrame};
use super::pages::listing::{Cursor, Target};
use super::source::Details;
use super::theme::Theme;

/// A list over all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tab {
    Processes,
    Suspects,
    Tensors,
    Objects,
    Kernels,
    Incidents,
}

impl Tab {
    pub(crate) const ALL: [Self; 6] = [
        Self::Processes,
        Self::Suspects,
        Self::Tensors,
        Self::Objects,
        Self::Kernels,
        Self::Incidents,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Suspects => "Suspects",
            Self::Tensors => "Tensors",
            Self::Objects => "Objects",
            Self::Kernels => "Kernels",
            Self::Incidents => "Incidents",
        }
    }
}

/// How the page of a process splits its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MemoryBy {
    #[default]
    Site,
    Function,
    Thread,
    Library,
}

impl MemoryBy {
    pub(crate) const ALL: [Self; 4] = [Self::Site, Self::Function, Self::Thread, Self::Library];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Site => "sites",
            Self::Function => "functions",
            Self::Thread => "threads",
            Self::Library => "libraries",
        }
    }
}

/// What fills the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Page {
    /// A list over all processes.
    Tab(Tab),
    /// Sites of a process.
    Sites { host: usize, key: ProcessKey },
    /// Call stack and evidence of a site.
    Stack { host: usize, key: ProcessKey, site: SiteName },
    /// Allocations of a site.
    Allocations { host: usize, key: ProcessKey, site: SiteName },
    /// A leak with its evidence.
    Leak { host: usize, id: u64 },
}

/// Something in front of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overlay {
    Help,
    Columns,
}

/// Areas of the last drawing that react to the mouse.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClickAreas {
    /// Line of the titles, and for each column its start, end and number.
    pub(crate) titles: Option<u16>,
    pub(crate) columns: Vec<(u16, u16, usize)>,
    /// First line of the rows, number of visible rows.
    pub(crate) rows: (u16, u16),
    /// Line of the tabs, and start and end of each.
    pub(crate) tabs_line: Option<u16>,
    pub(crate) tabs: Vec<(u16, u16, Tab)>,
}

/// State of the view.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) pages: Vec<(Page, Cursor)>,
    pub(crate) overlay: Option<(Overlay, Cursor)>,
    pub(crate) order: ProcessOrder,
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    pub(crate) memory_by: MemoryBy,
    pub(crate) site_order: SiteOrder,
    /// Filter of the page of a process.
    pub(crate) site_filter: String,
    /// The filter is being typed.
    pub(crate) is_typing: bool,
    pub(crate) only_leaks: bool,
    pub(crate) group_by: GroupBy,
    pub(crate) collapsed: HashSet<String>,
    pub(crate) columns: Vec<ProcessColumn>,
    /// Frames of libraries are shown.
    pub(crate) unfolded: bool,
    pub(crate) theme: Theme,
    pub(crate) is_ascii: bool,
    pub(crate) interval: Duration,
    pub(crate) speed: f64,
    /// The frame on the screen; `None` for the newest one.
    pub(crate) held: Option<HeldFrame>,
    /// State that later ones are compared with.
    pub(crate) baseline: Option<Arc<TopFrame>>,
    pub(crate) history: FrameHistory,
    pub(crate) message: Option<String>,
    /// Notes on what is not exact, for the help.
    pub(crate) notes: Vec<String>,
    pub(crate) source: String,
    pub(crate) is_replay: bool,
    /// Row that was selected when the screen was last drawn.
    pub(crate) selected: Target,
    pub(crate) areas: ClickAreas,
    /// Height of the table or text when it was last drawn.
    pub(crate) page_height: usize,
    pub(crate) quit: bool,
}

impl State {
    pub(crate) fn new(theme: Theme, is_ascii: bool, interval: Duration, speed: f64) -> Self {
        Self {
            pages: vec![(Page::Tab(Tab::Processes), Cursor::default())],
            columns: ProcessColumn::DEFAULT.to_vec(),
            theme,
            is_ascii,
            interval,
            speed,
            page_height: 1,
            ..Self::default()
        }
    }

    /// Returns the page in front.
    pub(crate) fn page(&self) -> Page {
        self.pages.last().map_or(Page::Tab(Tab::Processes), |(page, _)| *page)
    }

    /// Returns the tab that the page belongs to.
    pub(crate) fn tab(&self) -> Tab {
        match self.pages.first() {
            Some((Page::Tab(tab), _)) => *tab,
            _ => Tab::Processes,
        }
    }

    /// Shows a list over all processes.
    pub(crate) fn show_tab(&mut self, tab: Tab) {
        self.pages = vec![(Page::Tab(tab), Cursor::default())];
    }

    /// Opens a page on top of the current one.
    pub(crate) fn open(&mut self, page: Page) {
        if matches!(page, Page::Sites { .. }) {
            self.site_filter.clear();
        }
        self.pages.push((page, Cursor::default()));
    }

    /// Returns the filter of the page in front, if it has one.
    pub(crate) fn page_filter(&mut self) -> Option<&mut String> {
        match self.page() {
            Page::Tab(_) => Some(&mut self.filter),
            Page::Sites { .. } => Some(&mut self.site_filter),
            _ => None,
        }
    }

    /// Returns the cursor of what is in front.
    pub(crate) fn cursor(&mut self) -> Option<&mut Cursor> {
        match &mut self.overlay {
            Some((_, cursor)) => Some(cursor),
            None => self.pages.last_mut().map(|(_, cursor)| cursor),
        }
    }

    /// Returns the details that the page needs.
    pub(crate) fn details(&self) -> Details {
        match self.page() {
            Page::Tab(_) | Page::Leak { .. } => Details::Nothing,
            Page::Sites { host, key }
            | Page::Stack { host, key, .. }
            | Page::Allocations { host, key, .. } => Details::Process(host, key.pid),
        }
    }

    /// Adds a frame. What is shown stays while the screen is frozen.
    pub(crate) fn push(&mut self, frame: TopFrame) {
        self.history.push(Arc::new(frame));
        if let Some(held) = &mut self.held {
            self.history.refresh(held);
        }
    }

    /// Returns the frame on the screen, and its number.
    pub(crate) fn shown(&self) -> Option<(u64, &Arc<TopFrame>)> {
        self.held.as_ref().map_or_else(|| self.history.newest(), |it| Some((it.number, &it.frame)))
    }

    /// Rewinds (or goes forward, if negative) by a number of frames.
    pub(crate) fn rewind(&mut self, by: isize) {
        self.held = self.history.rewind(self.held.take(), by);
    }
}
