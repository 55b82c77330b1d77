// The same as the map, as a table: nodes in trouble first. Only the rows in view exist, whatever the size of the fleet.

import { h, icon, show } from './dom.js';
import { isTrouble, STATES, WORDS } from './fleet.js';
import { number, span, zoneName } from './words.js';

const ROW = 32;
/** Rows above and below those in view, so that scrolling shows no gap. */
const AROUND = 12;

export class NodeList {
  constructor(element, page) {
    Object.assign(this, { element, page, order: [], stamp: '' });
    this.body = h('div', { class: 'rows', role: 'rowgroup' });
    const head = ['Node', 'State', 'Zone', 'Heard'].map((name) => h('span', { role: 'columnheader' }, name));
    element.append(h('div', { class: 'thead', role: 'row' }, head), this.body);
    element.addEventListener('scroll', () => this.draw(), { passive: true });
  }

  /** Sorts the nodes again if anything has changed, and draws the rows in view. */
  refresh() {
    const { fleet, found, zone } = this.page,
      stamp = `${fleet.version} ${fleet.shape} ${this.page.search} ${zone}`;
    if (stamp !== this.stamp) {
      this.stamp = stamp;
      const byState = Array.from({ length: STATES }, () => []);
      for (const { name, ids } of fleet.zones)
        if (!zone || zone === name)
          for (const id of ids) if (!found || found.has(id)) byState[fleet.state[id]].push(id);
      this.order = byState.reverse().flat();
      this.element.setAttribute('aria-rowcount', this.order.length + 1);
    }
    this.draw();
  }

  draw() {
    const { fleet, selected } = this.page,
      first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - AROUND);
    const last = Math.min(
      this.order.length,
      Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + AROUND,
    );
    this.body.style.height = `${this.order.length * ROW}px`;
    const rows = [];
    for (let k = first; k < last; k++) rows.push(this.row(k, this.order[k], fleet, selected));
    show(this.body, rows.length ? rows : h('p', { class: 'sub none' }, 'No node matches.'));
  }

  row(k, id, fleet, selected) {
    const state = fleet.state[id],
      heard = fleet.heard[id],
      silent = (performance.now() - heard) / 1000;
    // Of a large fleet the page hears of some renewals only: a node that is not late has renewed in time.
    const words = !heard ? 'not heard' : isTrouble(state) || fleet.hearsAll ? `${span(silent)} ago` : 'in time';
    return h(
      'div',
      {
        class: 'tr',
        role: 'row',
        'data-key': id,
        'aria-rowindex': k + 2,
        'aria-selected': String(id === selected),
        css: { top: `${k * ROW}px` },
      },
      h('span', { role: 'cell' }, h('button', { class: 'link mono', 'data-node': fleet.names[id] }, fleet.names[id])),
      h('span', { role: 'cell', class: 'state' }, icon(`s${state}`), WORDS[state]),
      h('span', { role: 'cell' }, zoneName(fleet.zoneOf[id].name)),
      h('span', { role: 'cell' }, words),
    );
  }

  /** What the list has, in words. */
  words() {
    return `${number(this.order.length)} in the list`;
  }
}
