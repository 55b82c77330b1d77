//! Pods against a store and a runtime made of maps; the tests compare the actions that were performed.

mod events;
mod restart;
mod settle;
mod start;
mod static_pods;
mod stop;
