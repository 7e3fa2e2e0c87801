//! The second reading: what each band is at the chosen moments.

use hashbrown::HashMap;

use super::super::{Amount, Measure, Place, Running};
use super::{Band, By, Drawn, Moments};
use crate::change::{Change, Turn};
use crate::ids::SiteId;
use crate::units::Moment;

/// Bands over time. A row is a moment and what changed since the row before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Course {
    /// What tells the bands apart.
    pub by: By,
    /// The bands, the highest peak first, the rest last.
    pub bands: Vec<Band>,
    times: Vec<Moment>,
    /// Where in `cells` a row ends.
    ends: Vec<usize>,
    cells: Vec<(u32, u64)>,
}

/// One way to cut the memory into bands, while it is filled in.
#[derive(Clone, Debug)]
struct Cut {
    course: Course,
    index: HashMap<u64, u32>,
    rest: u32,
    now: Vec<Running>,
    told: Vec<u64>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Bands {
    measure: Measure,
    number: u64,
    changes: u64,
    moments: Moments,
    next: usize,
    cuts: Vec<Cut>,
    peak_number: u64,
    sites: HashMap<u64, (Running, i64)>,
    at_peak: Vec<(Option<SiteId>, Amount)>,
}

impl Bands {
    /// Bands of each of `cuts`: by what, and how many of them besides the rest.
    #[must_use]
    pub fn new(drawn: &Drawn, moments: Moments, cuts: &[(By, usize)]) -> Self {
        Self {
            measure: drawn.measure,
            number: 0,
            changes: drawn.changes,
            moments,
            next: 0,
            cuts: cuts.iter().map(|(by, most)| Cut::new(drawn, *by, *most)).collect(),
            peak_number: drawn.peak_number,
            sites: HashMap::new(),
            at_peak: Vec::new(),
        }
    }

    /// Takes note of a change. Those beyond what the first reading saw are left out: somebody may
    /// still be writing the file.
    pub fn change(&mut self, change: &Change) {
        if !self.measure.counts(change.kind) || self.number >= self.changes {
            return;
        }
        self.number += 1;
        let place = Place::of(change);
        match change.what {
            Turn::Began => self.begin(&place, change.bytes),
            Turn::Ended { .. } => self.end(&place, change.bytes),
            Turn::Learned { before, .. } => {
                self.end(&place.on(before.device), before.bytes);
                self.begin(&place, change.bytes);
            }
        }
        if self.number == self.peak_number {
            self.look();
        }
        if self.is_chosen() {
            for cut in &mut self.cuts {
                cut.tell(change.at);
            }
        }
    }

    fn begin(&mut self, place: &Place, bytes: u64) {
        for now in self.cuts.iter_mut().filter_map(|cut| cut.now(place)) {
            now.add(bytes);
        }
        if self.number <= self.peak_number {
            let (live, count) = self.sites.entry(By::Site.key(place)).or_default();
            live.add(bytes);
            *count = count.saturating_add(1);
        }
    }

    fn end(&mut self, place: &Place, bytes: u64) {
        for now in self.cuts.iter_mut().filter_map(|cut| cut.now(place)) {
            now.take(bytes);
        }
        if self.number <= self.peak_number {
            let (live, count) = self.sites.entry(By::Site.key(place)).or_default();
            live.take(bytes);
            *count = count.saturating_sub(1);
        }
    }

    /// What is live now is what was live at the peak.
    fn look(&mut self) {
        let sites = std::mem::take(&mut self.sites);
        self.at_peak = sites
            .into_iter()
            .map(|(key, (live, count))| {
                let site = match By::Site.band(key) {
                    Band::Site(site) => site,
                    _ => None,
                };
                let allocations = u64::try_from(count).unwrap_or(0);
                (site, Amount { bytes: live.shown(), allocations })
            })
            .filter(|(_, amount)| amount.bytes > 0)
            .collect();
        self.at_peak.sort_by_key(|(site, amount)| (std::cmp::Reverse(amount.bytes), *site));
    }

    fn is_chosen(&mut self) -> bool {
        match &self.moments {
            Moments::Every => true,
            Moments::Some(numbers) => {
                let chosen = numbers.get(self.next) == Some(&self.number);
                self.next += usize::from(chosen);
                chosen
            }
        }
    }

    /// Whether the second reading saw all that the first one saw.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.number == self.changes
    }

    /// The courses, as they were asked for; and what was live at the peak of the sum, by site, the
    /// biggest first.
    #[must_use]
    pub fn finish(self) -> (Vec<Course>, Vec<(Option<SiteId>, Amount)>) {
        (self.cuts.into_iter().map(|cut| cut.course).collect(), self.at_peak)
    }
}

impl Cut {
    fn new(drawn: &Drawn, by: By, most: usize) -> Self {
        let totals = drawn.totals(by);
        // A rest of one is no rest.
        let most = if totals.len() == most.saturating_add(1) { totals.len() } else { most };
        let mut bands: Vec<Band> = totals.iter().take(most).map(|total| total.band).collect();
        let keys = bands.iter().zip(0_u32..).map(|(band, index)| (key(*band), index));
        let index = keys.collect();
        let rest = u32::try_from(bands.len()).unwrap_or(u32::MAX);
        if totals.len() > most {
            bands.push(Band::Rest(totals.len() - most));
        }
        let count = bands.len();
        let course = Course { by, bands, times: Vec::new(), ends: Vec::new(), cells: Vec::new() };
        let (now, told) = (vec![Running::default(); count], vec![0; count]);
        Self { course, index, rest, now, told }
    }

    /// The sum of the band that a place belongs to.
    fn now(&mut self, place: &Place) -> Option<&mut Running> {
        let key = self.course.by.key(place);
        let band = self.index.get(&key).copied().unwrap_or(self.rest);
        self.now.get_mut(band as usize)
    }

    fn tell(&mut self, at: Moment) {
        let Self { course, now, told, .. } = self;
        for ((now, told), band) in now.iter().zip(told).zip(0_u32..) {
            if *told != now.shown() {
                *told = now.shown();
                course.cells.push((band, *told));
            }
        }
        course.times.push(at);
        course.ends.push(course.cells.len());
    }
}

/// The number of a band that is not the rest.
fn key(band: Band) -> u64 {
    match band {
        Band::Kind(kind) => kind as u64,
        Band::Site(site) => site.map_or(0, |site| u64::from(site.0) + 1),
        Band::Process(pid) => u64::from(pid.0),
        Band::Device(device) => device.map_or(0, |device| u64::from(device.0) + 1),
        Band::Rest(_) => u64::MAX,
    }
}

impl Course {
    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Each moment, and the bands that are not what they were before it: their number, and how much
    /// they are from then on.
    pub fn rows(&self) -> impl Iterator<Item = (Moment, &[(u32, u64)])> {
        let mut begin = 0;
        self.times.iter().zip(&self.ends).map(move |(at, end)| {
            let cells = self.cells.get(begin..*end).unwrap_or(&[]);
            begin = *end;
            (*at, cells)
        })
    }
}
