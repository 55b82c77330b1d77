// The zones, worst first: their state, counts, rate and queue, and the reason.

import { h, icon, until } from './dom.js';
import { COLOURS, SHOWN, WORDS } from './fleet.js';
import { zoneState, ZONE_STATES } from './verdict.js';
import { enumWord, many, millis, number, rate, span, zoneName } from './words.js';

/** More zones than this are counted, not listed; the map and the search have all of them. */
const LISTED = 200;

export function zoneCards(page) {
  const infoOf = new Map((page.info?.zones ?? []).map((zone) => [zone.name, zone]));
  const zones = page.fleet.zones.map((zone) => ({ zone, info: infoOf.get(zone.name) }));
  // A stable sort: equal zones stay in the order of their names.
  zones.sort((a, b) => zoneState(b.info) - zoneState(a.info) || (b.zone.failed > 0) - (a.zone.failed > 0));
  const cards = zones.slice(0, LISTED).map(({ zone, info }) => card(page, zone, info));
  if (zones.length > LISTED)
    cards.push(h('p', { class: 'sub more' }, `and ${many(zones.length - LISTED, 'more zone')}, all of them well`));
  return cards;
}

function card(page, zone, info) {
  const state = zoneState(info),
    all = zone.ids.length,
    ready = all - zone.failed;
  const isBusy = state > 1 || (info?.queueLength ?? 0) > 0;
  const name = zoneName(zone.name);
  return h(
    'button',
    {
      class: `zone ${state === 3 ? 'full' : state === 2 ? 'partial' : ''}`,
      'data-zone': zone.name,
      'data-key': zone.name,
      'aria-pressed': String(page.zone === zone.name),
      'aria-label': `Zone ${name}, ${info ? enumWord(info.state, 'ZONE_STATE_') : 'state not known'}, ${ready} of ${all} Ready${info?.queueLength ? `, ${info.queueLength} wait to be tainted` : ''}`,
    },
    h(
      'span',
      { class: 'top' },
      icon(`z${info ? state : 0}`),
      h('b', {}, name),
      h('span', {}, zone.failed ? `${number(ready)} / ${number(all)}` : number(all)),
    ),
    state !== 1 && info ? h('span', { class: 'st' }, ZONE_STATES[state]) : null,
    bar(zone),
    isBusy ? figures(info) : null,
    isBusy && info?.nextTaintAt && info.queueLength
      ? h('span', { class: 'line' }, 'Next node in ', until(millis(info.nextTaintAt)))
      : null,
    isBusy && info?.reason ? h('span', { class: 'line why' }, info.reason) : null,
    info?.excluded ? h('span', { class: 'line' }, `${many(info.excluded, 'node')} not counted`) : null,
  );
}

function figures(info) {
  const queue = info.queueLength ?? 0,
    clear = !queue ? '-' : info.rate > 0 ? span(queue / info.rate) : 'never';
  const figure = (name, value) => h('span', {}, h('i', {}, name), h('b', {}, value));
  return h(
    'span',
    { class: 'kv' },
    figure('Rate', rate(info.rate ?? 0)),
    figure('Queue', number(queue)),
    figure('Clear in', clear),
  );
}

/** The nodes of a zone by state, as shares of a bar. Each state has its own pattern. */
export function bar(zone) {
  const parts = SHOWN.filter((state) => zone.counts[state]);
  return h(
    'span',
    { class: 'bar' },
    parts.map((state) =>
      h('i', {
        class: `p-${COLOURS[state]}`,
        title: `${number(zone.counts[state])} ${WORDS[state]}`,
        'data-key': state,
        css: { 'flex-grow': zone.counts[state] },
      }),
    ),
  );
}
