//! The CPUs that containers share: all that are not exclusive to a container.

use std::collections::BTreeSet;
use std::io;
use std::sync::PoisonError;

use super::super::{ContainerSpec, Limits, affinity, cgroup};
use super::{CgroupPaths, Inner, Run, Stage, Tree};

impl Inner {
    /// Moves running containers without exclusive CPUs to these, unless they are there already; none means any.
    pub(super) fn share(&self, cpus: &[u32]) -> io::Result<()> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.as_deref() == Some(cpus) {
            return Ok(());
        }
        self.move_to(self.sharers(), cpus)?;
        // Only after all of them were moved: if one fails, the next call tries again.
        *shared = Some(cpus.to_vec());
        Ok(())
    }

    fn move_to(&self, sharers: Vec<(Run, Option<CgroupPaths>)>, cpus: &[u32]) -> io::Result<()> {
        let mut shims = BTreeSet::new();
        for (run, paths) in sharers {
            match paths.filter(|_| self.controls_cpus()) {
                Some(paths) => cgroup::keep_to(&paths.container, cpus)?,
                None => drop(shims.insert(run.shim.pid)),
            }
        }
        if !shims.is_empty() {
            // Containers start on the agent's CPUs.
            let set = if cpus.is_empty() { affinity::own()? } else { affinity::set_of(cpus)? };
            affinity::move_all_below(&shims, &set)?;
        }
        Ok(())
    }

    /// Moves a container that has just started, if the others were moved while it started.
    pub(super) fn follow_sharers(&self, spec: &ContainerSpec, run: &Run, started_on: &[u32]) {
        let cpus = self.cpus_of(&spec.limits);
        let paths = self.tree.as_ref().map(|tree| tree.paths(&spec.id));
        if cpus != started_on
            && let Err(error) = self.move_to(vec![(run.clone(), paths)], &cpus)
        {
            tracing::warn!(container = %spec.id, %error, "it still runs on CPUs that are assigned to others");
        }
    }

    /// The CPUs of a container: its exclusive ones, or those that are shared.
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

    fn sharers(&self) -> Vec<(Run, Option<CgroupPaths>)> {
        let table = self.table();
        let sharing = table.values().filter(|entry| entry.cpus.is_empty());
        let running = sharing.filter_map(|entry| match &entry.stage {
            Stage::Running(run) => Some((run.clone(), entry.cgroup.clone())),
            Stage::Starting | Stage::Exited(_) => None,
        });
        running.collect()
    }
}
