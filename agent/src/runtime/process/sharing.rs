//! The CPUs that containers share: all that no container has for itself.

use std::collections::BTreeSet;
use std::io;
use std::sync::PoisonError;

use super::super::{Limits, affinity, cgroup};
use super::{Inner, Stage, Tree};

impl Inner {
    /// Moves what runs without CPUs of its own to these, unless it is there already; none means any.
    pub(super) fn share(&self, cpus: &[u32]) -> io::Result<()> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.as_deref() == Some(cpus) {
            return Ok(());
        }
        let mut shims = BTreeSet::new();
        for (run, place) in self.sharers() {
            match place.filter(|_| self.controls_cpus()) {
                Some(place) => cgroup::keep_to(&place.container, cpus)?,
                None => drop(shims.insert(run.shim.pid)),
            }
        }
        if !shims.is_empty() {
            // Containers start where the agent runs.
            let set = if cpus.is_empty() { affinity::own()? } else { affinity::set_of(cpus)? };
            affinity::move_all_below(&shims, &set)?;
        }
        // Not before all of them are there: should it fail, the next call tries again.
        *shared = Some(cpus.to_vec());
        Ok(())
    }

    /// Where a container belongs: its own CPUs, or those that are shared.
    pub(super) fn cpus_of(&self, limits: &Limits) -> Vec<u32> {
        if limits.cpus.is_empty() {
            let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.clone().unwrap_or_default()
        } else {
            limits.cpus.clone()
        }
    }

    pub(super) fn controls_cpus(&self) -> bool {
        self.tree.as_ref().is_some_and(Tree::controls_cpus)
    }

    fn sharers(&self) -> Vec<(super::Run, Option<super::CgroupPlace>)> {
        let table = self.table();
        let sharing = table.values().filter(|entry| entry.cpus.is_empty());
        let running = sharing.filter_map(|entry| match &entry.stage {
            Stage::Running(run) => Some((run.clone(), entry.cgroup.clone())),
            Stage::Starting | Stage::Exited(_) => None,
        });
        running.collect()
    }
}
