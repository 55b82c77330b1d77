// The search: parts of names, `zone=` and `state=` here; labels are asked of the store, which has them.

import * as api from './api.js';
import { WORDS } from './fleet.js';
import { zoneName } from './words.js';

const PAUSE = 300;

/** The parts of a query: tests of a node, and the label selector that is left. */
export function parse(query) {
  const tests = [],
    labels = [];
  for (const term of query
    .trim()
    .split(/[\s,]+/)
    .filter(Boolean)) {
    const [, key, value] = term.match(/^([^=]+)=(.*)$/) ?? [];
    const lower = (value ?? term).toLowerCase();
    if (key === 'zone') tests.push((fleet, id) => zoneName(fleet.zoneOf[id].name).toLowerCase().includes(lower));
    else if (key === 'state')
      tests.push((fleet, id) =>
        WORDS[fleet.state[id]]
          .toLowerCase()
          .replace(' ', '')
          .startsWith(lower.replace(/[^a-z]/g, '')),
      );
    else if (key) labels.push(term);
    else tests.push((fleet, id) => fleet.names[id].toLowerCase().includes(lower));
  }
  return { tests, selector: labels.join(',') };
}

export class Search {
  constructor(fleet, changed) {
    Object.assign(this, {
      fleet,
      changed,
      query: '',
      only: -1,
      found: null,
      labelled: null,
      failure: '',
      timer: 0,
      stamp: 0,
    });
  }

  /** Takes a query. Labels are asked for when the typing has stopped. */
  set(query) {
    this.query = query;
    this.failure = '';
    clearTimeout(this.timer);
    const { selector } = parse(query);
    if (!selector) this.labelled = null;
    else this.timer = setTimeout(() => this.ask(selector, query), PAUSE);
    this.run();
  }

  setOnly(state) {
    this.only = state;
    this.run();
  }

  async ask(selector, query) {
    try {
      const { names } = await api.search(selector);
      if (this.query !== query) return;
      this.labelled = new Set(names);
    } catch (error) {
      if (this.query !== query) return;
      this.labelled = new Set();
      this.failure = error.message;
    }
    this.run();
  }

  /** Finds the nodes again. */
  run() {
    const { fleet, only, labelled } = this,
      { tests } = parse(this.query);
    if (!tests.length && !labelled && only < 0) this.found = null;
    else {
      this.found = new Set();
      for (const zone of fleet.zones)
        for (const id of zone.ids)
          if (
            (only < 0 || fleet.state[id] === only) &&
            (!labelled || labelled.has(fleet.names[id])) &&
            tests.every((test) => test(fleet, id))
          )
            this.found.add(id);
    }
    this.stamp++;
    this.changed();
  }
}
