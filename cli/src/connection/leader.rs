//! Which of several controllers leads.

use futures_util::future::join_all;
use muster_proto::pb;

use super::Controller;

/// The place of the controller that leads; `None` if none says so.
///
/// If two say so, as for a moment when the lead changes, it is the first one: the store refuses the writes of a leader
/// that has lost its lease.
pub(super) async fn find(controllers: &[Controller]) -> Option<usize> {
    let answers = join_all(controllers.iter().map(get_fleet)).await;
    let fleets: Vec<Option<pb::Fleet>> = answers.into_iter().collect();
    leading(&fleets)
}

async fn get_fleet(controller: &Controller) -> Option<pb::Fleet> {
    let request = controller.with_timeout(pb::GetFleetRequest {});
    controller.client.clone().get_fleet(request).await.ok()?.into_inner().fleet
}

fn leading(fleets: &[Option<pb::Fleet>]) -> Option<usize> {
    let leads = |fleet: &Option<pb::Fleet>| {
        fleet.as_ref().is_some_and(|fleet| {
            !fleet.leader.is_empty()
                && fleet.leader == fleet.controller
                && fleet.state() != pb::FleetState::Standby
        })
    };
    // A standby that can be reached tells more than an address that cannot.
    fleets.iter().position(leads).or_else(|| fleets.iter().position(Option::is_some))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_chosen_before_a_standby_and_a_standby_before_nobody() {
        let fleet = |own: &str, leader: &str, state: pb::FleetState| {
            let (controller, leader) = (own.to_owned(), leader.to_owned());
            Some(pb::Fleet { controller, leader, state: state.into(), ..Default::default() })
        };
        use pb::FleetState::{Holding, Normal, Standby};
        for (fleets, expected) in [
            (vec![fleet("a", "b", Standby), fleet("b", "b", Normal)], Some(1)),
            (vec![fleet("a", "a", Holding), fleet("b", "a", Standby)], Some(0)),
            (vec![None, fleet("b", "b", Normal)], Some(1)),
            (vec![None, fleet("b", "", Standby)], Some(1)),
            (vec![None, None], None),
        ] {
            assert_eq!(leading(&fleets), expected, "{fleets:?}");
        }
    }
}
