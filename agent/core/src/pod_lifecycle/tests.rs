//! A harness with a store and a runtime made of maps, and the journeys of pods told as what was done.

mod events;
mod restart;
mod settle;
mod start;
mod stop;
