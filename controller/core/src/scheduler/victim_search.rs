//! The search for a node on which displacing pods makes space for a pod that fits no node.

use super::Scheduler;
use super::node_cache::NodeInfo;
use super::pod_requirements::PodRequirements;
use super::preemption::{Candidate, Disruptions, best, select_victims, wanted_candidates};
use crate::world::World;

/// Examining the pods of a node takes so many times as long as examining the node.
const COST_OF_PODS: usize = 8;

/// The result of a search for pods to displace.
pub(super) enum Search {
    Found(Candidate),
    /// No pods of lower priority can make space.
    Nothing,
    /// It is not known yet: budgets are not read, or pods of lower priority are just being bound.
    TryAgain,
}

impl Scheduler {
    /// Searches a node on which displacing pods of lower priority makes space for the pod.
    pub(super) fn search_victims(
        &mut self,
        requirements: &PodRequirements,
        world: &World,
        examined: &mut usize,
    ) -> Search {
        let priority = requirements.priority();
        if !requirements.spec.may_preempt() {
            return Search::Nothing;
        }
        // A pod that is being bound is not displaced before its record shows that it is bound.
        let is_binding = self.pending_pods.has_allocated_below(priority);
        let otherwise = if is_binding { Search::TryAgain } else { Search::Nothing };
        if !self.cache.has_displaceable_below(priority) {
            return otherwise;
        }
        if !world.budgets.is_synced() {
            return Search::TryAgain;
        }
        let requested = self.victims.keys().filter_map(|key| world.pod(key));
        let requested = requested.filter(|pod| !pod.meta.is_deleting()).map(|pod| &**pod).collect();
        let disruptions = Disruptions { budgets: &world.budgets, requested };
        let wanted = wanted_candidates(self.cache.node_count());
        let (mut candidates, mut is_enough) = (Vec::new(), false);
        let all = self.cache.infos();
        // Each search begins where the last one ended, so that not always the same nodes are compared.
        let start = if all.is_empty() { 0 } else { self.search_from % all.len() };
        let mut ended_at = start;
        let (before, after) = all.split_at(start);
        let named = requirements.node_names.as_ref();
        let infos: Box<dyn Iterator<Item = &NodeInfo>> = match named {
            Some(names) => Box::new(names.iter().filter_map(|name| self.cache.info(name))),
            None => Box::new(after.iter().chain(before)),
        };
        for info in infos {
            *examined += 1;
            ended_at += 1;
            let Some(view) = &info.view else { continue };
            let pods = world.pods_on(view.node.meta.name.as_str());
            if let Some(found) = select_victims(requirements, info, pods, &disruptions) {
                *examined += COST_OF_PODS * usize::try_from(info.allocated.pods).unwrap_or(0);
                is_enough |= found.violations == 0;
                candidates.push(found);
            }
            if is_enough && candidates.len() >= wanted {
                break;
            }
        }
        if named.is_none() {
            self.search_from = ended_at;
        }
        best(candidates).map_or(otherwise, Search::Found)
    }
}
