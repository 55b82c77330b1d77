// One glance: whether the fleet is well, what is wrong, and what comes next. Pure, except that it writes elements.

import { LATE } from './fleet.js';
import { until } from './dom.js';
import { enumWord, many, millis, number, span, zoneName } from './words.js';

/** The state of a zone as a number: 0 initial, 1 normal, 2 partly and 3 fully disrupted. */
export const ZONE_STATES = ['Initial', 'Normal', 'PartialDisruption', 'FullDisruption'];
export const zoneState = (zone) => Math.max(0, ZONE_STATES.indexOf(enumWord(zone?.state, 'ZONE_STATE_')));

const sentence = (text) => (!text ? '' : /[.!?]$/.test(text) ? text : `${text}.`);

/**
 * The verdict: how bad it is (`good`, `warn`, `bad`, `wait`), the symbol, the headline, and what is behind it as a list of
 * texts and elements.
 */
export function verdict(page) {
  return (
    connection(page) ??
    loading(page) ??
    controllerState(page) ??
    lostZones(page) ??
    failedNodes(page) ??
    lateNodes(page) ?? {
      kind: 'good',
      symbol: 'z1',
      head: `All ${many(page.fleet.size, 'node')} are Ready.`.replace('All 1 node are', 'The node is'),
      small: [page.info ? 'Nothing waits to be tainted or evicted.' : ''],
    }
  );
}

/** What is wrong with this page's own view. */
function connection({ isOpen, silent, sources, info }) {
  if (!isOpen && silent > 3000)
    return {
      kind: 'bad',
      symbol: 'z3',
      stale: true,
      head: 'This page has lost its server.',
      small: [
        `Not heard for ${span(silent / 1000)}. What is shown is of then; the page tries again by itself. Does `,
        code('muster ui'),
        ' still run?',
      ],
    };
  if (sources.store.state === 'lost')
    return {
      kind: 'bad',
      symbol: 'z3',
      stale: true,
      head: 'The store is not heard.',
      small: [sentence(sources.store.reason), ' What is shown is of before; it is tried again.'],
    };
  if (sources.controller.state === 'lost')
    return {
      kind: 'bad',
      symbol: 'z3',
      head: 'The controller is not heard.',
      small: [
        sentence(sources.controller.reason),
        info ? ' Zones and queues are of before.' : ' Nodes are shown as the store has them.',
      ],
    };
  return null;
}

const code = (text) => {
  const element = document.createElement('code');
  element.textContent = text;
  return element;
};

function loading({ fleet, isComplete, info }) {
  if (fleet.loading && !isComplete) {
    const { read, total } = fleet.loading;
    return { kind: 'wait', symbol: 'z0', head: `Reading the nodes: ${number(read)} of ${number(total)}.`, small: [''] };
  }
  if (!isComplete)
    return {
      kind: 'wait',
      symbol: 'z0',
      head: 'Reading the nodes from the store.',
      small: [info ? `The controller has ${many(info.nodes ?? 0, 'node')}.` : ''],
    };
  if (!fleet.size)
    return {
      kind: 'wait',
      symbol: 'z0',
      head: 'There is no node yet.',
      small: ['Start an agent on a machine, or simulated ones to try Muster out: ', code('muster up --nodes 9')],
    };
  return null;
}

/** What the controller says of the fleet as a whole. */
function controllerState({ info }) {
  const state = enumWord(info?.state, 'FLEET_STATE_');
  if (state === 'Syncing')
    return {
      kind: 'warn',
      symbol: 'z4',
      head: 'The controller is not in step with the store, so it decides nothing.',
      small: [sentence(info.reason)],
    };
  if (state === 'Standby')
    return {
      kind: 'warn',
      symbol: 'z4',
      head: info.leader ? `${info.leader} leads, and is not asked here.` : 'No controller leads.',
      small: [
        `${info.controller} is a standby: it writes nothing.`,
        info.leader ? ' Give the address of the leader with --controller.' : '',
      ],
    };
  if (state === 'FullDisruption')
    return {
      kind: 'bad',
      symbol: 'z3',
      head: 'All zones have failed, so nobody is evicted.',
      small: [sentence(info.reason)],
    };
  if (state === 'Holding') {
    const { hold = {} } = info;
    return {
      kind: 'warn',
      symbol: 'z4',
      head: 'Evictions are on hold.',
      small: [
        'Nobody is evicted for another ',
        until(millis(hold.until)),
        `. ${number(hold.seenNodes ?? 0)} of ${number(hold.nodes ?? 0)} nodes have been heard since. `,
        sentence(hold.reason),
      ],
    };
  }
  return null;
}

const isLost = (zone) => zoneState(zone) === 3,
  isPartial = (zone) => zoneState(zone) === 2;

function lostZones({ info, fleet }) {
  const zones = info?.zones ?? [],
    lost = zones.filter(isLost),
    partial = zones.filter(isPartial);
  const worst = lost[0] ?? partial[0];
  if (!worst) return null;
  const others = [...lost.slice(1), ...partial].filter((zone) => zone !== worst);
  const also = others.length
    ? ` Also: ${others
        .slice(0, 2)
        .map((zone) => `${zoneName(zone.name)} is ${isLost(zone) ? 'lost' : 'partly disrupted'}`)
        .join(', ')}${others.length > 2 ? `, and ${many(others.length - 2, 'other zone')}` : ''}.`
    : '';
  const counts = fleet.zoneByName.get(worst.name)?.counts,
    silent = counts && counts[6] + counts[7] === worst.unhealthy;
  const head = isLost(worst)
    ? `Zone ${zoneName(worst.name)} is lost: ${worst.nodes === 1 ? 'its node is' : `all ${number(worst.nodes)} nodes are`} ${silent ? 'silent' : 'not Ready'}.`
    : `Zone ${zoneName(worst.name)} is partly disrupted: ${number(worst.unhealthy)} of ${many(worst.nodes, 'node')} are not Ready.`;
  return {
    kind: isLost(worst) ? 'bad' : 'warn',
    symbol: isLost(worst) ? 'z3' : 'z2',
    head,
    small: [queueWords(worst), also],
  };
}

/** What happens to the queue of a zone. */
export function queueWords(zone) {
  const queue = zone.queueLength ?? 0;
  if (!queue) return 'No node waits to be tainted.';
  if (!(zone.rate > 0)) return `${many(queue, 'node')} wait${queue === 1 ? 's' : ''}, and tainting is stopped.`;
  return `One node is tainted every ${span(1 / zone.rate)}; ${number(queue)} wait${queue === 1 ? 's' : ''}, the last for ${span(queue / zone.rate)}.`;
}

function failedNodes({ fleet, info }) {
  const failed = fleet.failed;
  if (!failed) return null;
  const zones = info?.zones ?? [],
    waiting = zones.reduce((sum, zone) => sum + (zone.queueLength ?? 0), 0);
  const next = zones
    .filter((zone) => zone.nextTaintAt && zone.queueLength)
    .map((zone) => millis(zone.nextTaintAt))
    .sort((a, b) => a - b)[0];
  const head = `${many(failed, 'node')} of ${number(fleet.size)} ${failed === 1 ? 'is' : 'are'} not Ready.${zones.length ? ` ${zones.length === 1 ? 'The zone is' : 'All zones are'} Normal.` : ''}`;
  const small =
    next && waiting
      ? ['The next node is tainted in ', until(next), `; ${number(waiting)} wait${waiting === 1 ? 's' : ''}.`]
      : [zones.length ? 'No node waits to be tainted.' : ''];
  return { kind: 'warn', symbol: 'z2', head, small };
}

function lateNodes({ fleet }) {
  const late = fleet.counts[LATE];
  if (!late) return null;
  return {
    kind: 'good',
    symbol: 'z1',
    head: `All ${many(fleet.size, 'node')} are Ready; ${number(late)} ${late === 1 ? 'is' : 'are'} late.`,
    small: ['A late node has missed renewals. It becomes Unknown if it stays silent.'],
  };
}
