// The panel when no node is chosen: what happens next, drains, address pools, deletions.

import { h, until } from './dom.js';
import { many, millis, moment, number, rate, zoneName } from './words.js';

const SOON = 15000;
/** A moment that has just passed is still shown until the controller says otherwise. */
const PASSED = -2000;

export const fleetPanel = {
  isShown: () => true,
  show: (page) =>
    page.info
      ? [next(page), drains(page), pools(page), cloud(page), about(page)]
      : [
          h(
            'section',
            { class: 'sec' },
            h(
              'p',
              { class: 'sub' },
              page.sources.controller.state === 'connecting'
                ? 'The controller has not answered yet.'
                : 'Zones, queues and drains are the controller\u2019s, which is not heard.',
            ),
          ),
        ],
};

const section = (title, note, ...content) =>
  h('section', { class: 'sec', 'data-key': title }, h('h3', {}, title, note ? h('span', {}, note) : null), content);

const nodeLink = (name) => h('button', { class: 'link', 'data-node': name }, name);

function next(page) {
  const now = page.controllerNow(),
    { zones = [], hold } = page.info,
    list = [];
  if (hold?.until) list.push([millis(hold.until), 'The eviction hold ends', hold.reason]);
  for (const zone of zones)
    if (zone.queueLength && zone.nextTaintAt)
      list.push([
        millis(zone.nextTaintAt),
        [nodeLink(zone.queue[0]), ' is tainted'],
        `${zoneName(zone.name)}: first of ${number(zone.queueLength)}, ${rate(zone.rate)}`,
      ]);
  for (const { nodeName, drain } of page.info.drains ?? [])
    if (drain?.deadline)
      list.push([
        millis(drain.deadline),
        ['The drain of ', nodeLink(nodeName), ' fails'],
        'unless it is complete before',
      ]);
  const coming = list
    .filter(([at]) => at - now > PASSED)
    .sort((a, b) => a[0] - b[0])
    .slice(0, 6);
  const items = coming.map(([at, what, why]) =>
    h(
      'li',
      {},
      until(at, at - now < SOON ? 'cd soon' : 'cd'),
      h('span', {}, h('span', {}, what), h('span', { class: 'sub' }, why)),
    ),
  );
  const armed = page.info.armedEvictions ?? 0;
  return section(
    'What happens next',
    'if nothing changes',
    items.length ? h('ul', { class: 'next' }, items) : null,
    armed
      ? h(
          'p',
          { class: 'sub' },
          `${many(armed, 'pod')} ${armed === 1 ? 'leaves' : 'leave'} when the toleration ends; a node\u2019s page says when.`,
        )
      : null,
    !items.length && !armed ? h('p', { class: 'sub' }, 'Nothing is due.') : null,
  );
}

function drains(page) {
  const list = page.info.drains ?? [];
  const items = list.slice(0, 20).map(({ nodeName, drain = {}, remaining = 0 }) => {
    const most = page.drainMost(nodeName, remaining),
      gone = most - remaining;
    return h(
      'li',
      { class: 'drain', 'data-key': nodeName },
      h('div', { class: 'row' }, nodeLink(nodeName), h('span', { class: 'sub' }, `${many(remaining, 'pod')} to go`)),
      h(
        'div',
        {
          class: 'meter',
          role: 'progressbar',
          'aria-label': `Drain of ${nodeName}`,
          'aria-valuemin': 0,
          'aria-valuemax': most,
          'aria-valuenow': gone,
          'aria-valuetext': `${gone} of ${most} pods gone`,
        },
        h('i', { css: { width: `${most ? (100 * gone) / most : 100}%` } }),
      ),
      h(
        'p',
        { class: 'sub' },
        `${drain.reason ?? ''}${drain.requestedBy ? `, asked by ${drain.requestedBy}` : ''}${drain.requestedAt ? ` at ${moment(millis(drain.requestedAt))}` : ''}`,
      ),
      drain.message ? h('p', { class: 'sub' }, drain.message) : null,
    );
  });
  return section(
    'Drains',
    list.length ? `${list.length} under way` : null,
    items.length ? h('ul', {}, items) : h('p', { class: 'sub' }, 'None is under way.'),
    list.length > 20 ? h('p', { class: 'sub' }, `and ${number(list.length - 20)} more`) : null,
  );
}

function pools({ info }) {
  const list = info.cidrPools ?? [];
  if (!list.length && !info.cidrFailure) return null;
  const items = list.map((pool) => {
    const { blocks = 0, used = 0, reserved = 0, waiting = 0, conflicts = 0 } = pool,
      free = Math.max(0, blocks - used - reserved);
    const share = (count) => ({ width: `${blocks ? (100 * count) / blocks : 0}%` });
    return h(
      'li',
      { class: 'pool', 'data-key': pool.cidr },
      h(
        'div',
        { class: 'row' },
        h('span', { class: 'mono' }, pool.cidr),
        h('span', { class: 'sub' }, `${number(free)} of ${number(blocks)} free`),
      ),
      h(
        'div',
        {
          class: 'meter',
          role: 'img',
          'aria-label': `${pool.cidr}: ${used} of ${blocks} blocks used, ${reserved} reserved`,
        },
        h('i', { class: 'used', css: share(used) }),
        h('i', { class: 'reserved', css: share(reserved) }),
      ),
      h(
        'p',
        { class: 'sub' },
        `blocks of /${pool.nodeMask}, ${number(used)} used${reserved ? `, ${number(reserved)} reserved` : ''}`,
      ),
      waiting ? h('p', { class: 'warn' }, `${many(waiting, 'node')} wait for a block.`) : null,
      conflicts
        ? h(
            'p',
            { class: 'bad' },
            `${many(conflicts, 'block')} ${conflicts === 1 ? 'has' : 'have'} more than one node.`,
          )
        : null,
    );
  });
  return section(
    'Address pools',
    null,
    h('ul', {}, items),
    info.cidrFailure ? h('p', { class: 'bad' }, info.cidrFailure) : null,
  );
}

function cloud({ info }) {
  if (!info.cloud) return null;
  const { used = 0, limit = 0, period, heldBack = 0, confirmations = 0 } = info.cloud;
  return section(
    'Deleting nodes without a machine',
    null,
    h(
      'p',
      { class: heldBack ? 'warn' : 'sub' },
      `${used} of ${limit} deletions in ${period ?? 'the period'} used, after ${confirmations} answers each.`,
      heldBack ? ` ${many(heldBack, 'node')} held back by the limit.` : '',
    ),
  );
}

function about({ info, sources }) {
  const row = (name, value) => [h('dt', {}, name), h('dd', {}, value)];
  return section(
    'Controller',
    null,
    h(
      'dl',
      { class: 'facts' },
      row('Leader', info.leader || 'none'),
      info.controller !== info.leader ? row('Answers', info.controller) : null,
      row('State', info.reason || 'normal'),
      row('Store', sources.store.state === 'heard' ? 'heard' : (sources.store.reason ?? 'connecting')),
    ),
  );
}
