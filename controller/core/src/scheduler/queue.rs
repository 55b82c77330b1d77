//! Who is tried next, and who waits for what.
//!
//! Pods that ask the same stand in one line. When the first of a line fits nowhere, none of it does, so the whole line
//! waits: until a node has become one that will do, or at the latest for a set time. Lines are tried in the order of
//! their first pods: highest priority, then longest wait, then name.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::time::Mono;

use super::fit_error::Verdict;
use super::pod_requirements::Demand;
use crate::deadlines::Deadlines;

pub(crate) type LineId = u64;

/// A pod's place in its line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) since: Mono,
    pub(crate) key: Key,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// How long a line waits if nothing has.
    patience: Duration,
    lines: HashMap<LineId, Line>,
    by_demand: HashMap<Arc<Demand>, LineId>,
    next_id: LineId,
    /// The first of each line that is to be tried.
    ready: BTreeSet<(Reverse<i32>, Place, LineId)>,
    /// When the other lines are to be tried, and how long each waits after it failed, if something has changed meanwhile.
    /// Which of the lines that may be tried comes first is not a matter of deadlines but of priority: `ready` has that.
    retries: Deadlines<LineId>,
    /// Lines that wait and in which not everybody was told why.
    untold: BTreeSet<LineId>,
}

#[derive(Clone, Debug)]
struct Line {
    demand: Arc<Demand>,
    pods: BTreeSet<Place>,
    /// Pods that will be back: their record is being written.
    away: usize,
    /// `None` if it is to be tried.
    failed: Option<Failed>,
    /// What those who are not in `untold` were told.
    told: String,
    untold: BTreeSet<Place>,
    /// What of it is in `ready`.
    first: Option<Place>,
}

/// How a line came to wait.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) verdict: Verdict,
    /// When it was last tried.
    pub(crate) at: Mono,
    /// Something has changed since.
    woken: bool,
}

impl Queue {
    pub(crate) fn new(rests: Backoff, patience: Duration) -> Queue {
        Queue {
            patience,
            lines: HashMap::new(),
            by_demand: HashMap::new(),
            next_id: 0,
            ready: BTreeSet::new(),
            retries: Deadlines::new(rests),
            untold: BTreeSet::new(),
        }
    }

    /// Puts a pod in the line of those who ask the same; if that waits, so does the pod.
    pub(crate) fn join(&mut self, demand: &Arc<Demand>, place: Place) -> LineId {
        let id = self.line_for(demand);
        let line = self.line(id);
        line.untold.insert(place.clone());
        line.pods.insert(place);
        // Nobody has looked since something changed, and a pod that never failed has no need of a rest.
        if line.failed.take_if(|failed| failed.woken).is_some() {
            self.retries.cancel(&id);
        }
        self.refresh(id);
        id
    }

    fn line_for(&mut self, demand: &Arc<Demand>) -> LineId {
        if let Some(&id) = self.by_demand.get(demand) {
            return id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let line = Line {
            demand: Arc::clone(demand),
            pods: BTreeSet::new(),
            away: 0,
            failed: None,
            told: String::new(),
            untold: BTreeSet::new(),
            first: None,
        };
        self.lines.insert(id, line);
        self.by_demand.insert(Arc::clone(demand), id);
        id
    }

    /// Takes a pod out of its line for good, wherever it is.
    pub(crate) fn leave(&mut self, id: LineId, place: &Place) {
        let line = self.line(id);
        if !line.remove(place) {
            line.away -= 1;
        }
        self.refresh(id);
    }

    /// Lets a pod stand aside while its record is written.
    pub(crate) fn stand_aside(&mut self, id: LineId, place: &Place) {
        let line = self.line(id);
        if line.remove(place) {
            line.away += 1;
        }
        self.refresh(id);
    }

    /// A pod that stood aside is back.
    pub(crate) fn come_back(&mut self, id: LineId, place: Place) {
        let line = self.line(id);
        line.away -= 1;
        line.pods.insert(place);
        self.refresh(id);
    }

    /// Who is tried next, and what it asks for.
    pub(crate) fn next(&self) -> Option<(LineId, Place, Arc<Demand>)> {
        let (_, place, id) = self.ready.first()?;
        Some((*id, place.clone(), Arc::clone(&self.lines[id].demand)))
    }

    /// A node was found for the pod: it leaves its line, and the line starts afresh.
    pub(crate) fn placed(&mut self, id: LineId, place: &Place) {
        self.retries.succeed(&id);
        self.leave(id, place);
    }

    /// No node was found: the line waits.
    pub(crate) fn failed(&mut self, id: LineId, verdict: Verdict, now: Mono) {
        self.retries.fail(&id, now);
        self.retries.schedule(id, now + self.patience);
        let line = self.line(id);
        let message = verdict.to_string();
        if message != line.told {
            line.told = message;
            line.untold.clone_from(&line.pods);
        }
        line.failed = Some(Failed { verdict, at: now, woken: false });
        self.refresh(id);
    }

    /// Something has changed: lines for which that is good news are tried as soon as they have rested.
    pub(crate) fn wake(&mut self, is_good_news: impl Fn(&Demand) -> bool) {
        let is_woken = |line: &Line| line.failed.as_ref().is_some_and(|failed| failed.woken);
        let asleep = self.retries.iter().filter(|(_, id)| {
            let line = &self.lines[id];
            !is_woken(line) && is_good_news(&line.demand)
        });
        let ids: Vec<LineId> = asleep.map(|(_, id)| *id).collect();
        for id in ids {
            if let Some(failed) = &mut self.line(id).failed {
                failed.woken = true;
            }
            if let Some(rested) = self.retries.retry_at(&id) {
                self.retries.schedule(id, rested);
            }
        }
    }

    /// Lets the lines be tried whose time has come.
    pub(crate) fn advance(&mut self, now: Mono) {
        while let Some(id) = self.retries.pop(now) {
            self.line(id).failed = None;
            self.refresh(id);
        }
    }

    /// A pod that waits and was not told why, with why.
    pub(crate) fn next_untold(&self) -> Option<(LineId, Place, &str)> {
        let id = self.untold.first()?;
        let line = &self.lines[id];
        Some((*id, line.untold.first()?.clone(), &line.told))
    }

    pub(crate) fn set_told(&mut self, id: LineId, place: &Place) {
        self.line(id).untold.remove(place);
        self.refresh(id);
    }

    /// The pod has to be told again.
    pub(crate) fn set_untold(&mut self, id: LineId, place: Place) {
        self.line(id).untold.insert(place);
        self.refresh(id);
    }

    /// When to look again: at once if somebody is to be tried or told.
    pub(crate) fn next_at(&self, now: Mono) -> Option<Mono> {
        let at_once = !self.ready.is_empty() || !self.untold.is_empty();
        if at_once { Some(now) } else { self.retries.next() }
    }

    /// Why a line waits; `None` if it is about to be tried.
    pub(crate) fn why(&self, id: LineId) -> Option<&Failed> {
        self.lines.get(&id).and_then(|line| line.failed.as_ref())
    }

    /// When a line that waits is tried again.
    pub(crate) fn again_at(&self, id: LineId) -> Option<Mono> {
        self.retries.due_at(&id)
    }

    fn line(&mut self, id: LineId) -> &mut Line {
        self.lines.get_mut(&id).expect("a line is there as long as somebody is in it")
    }

    /// Brings the orders up to date with a line; one that nobody is in goes.
    fn refresh(&mut self, id: LineId) {
        let line = self.lines.get_mut(&id).expect("a line is there as long as somebody is in it");
        let priority = Reverse(line.demand.priority());
        if let Some(first) = line.first.take() {
            self.ready.remove(&(priority, first, id));
        }
        if line.pods.is_empty() && line.away == 0 {
            let line = self.lines.remove(&id).expect("it was there above");
            self.by_demand.remove(&line.demand);
            self.retries.forget(&id);
            self.untold.remove(&id);
            return;
        }
        if line.failed.is_none()
            && let Some(first) = line.pods.first()
        {
            line.first = Some(first.clone());
            self.ready.insert((priority, first.clone(), id));
        }
        if line.failed.is_some() && !line.untold.is_empty() {
            self.untold.insert(id);
        } else {
            self.untold.remove(&id);
        }
    }
}

impl Line {
    /// Whether the pod was there.
    fn remove(&mut self, place: &Place) -> bool {
        self.untold.remove(place);
        self.pods.remove(place)
    }
}
