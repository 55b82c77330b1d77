// The panel of the chosen node: why it is as it is, and what happens to it and its pods.

import * as api from './api.js';
import { h, icon, until } from './dom.js';
import { WORDS } from './fleet.js';
import { duration, enumWord, millis, moment, number, span } from './words.js';

/** How often the explanation is asked for again. */
const REFRESH = 2000;

/** The names of the actions of an explanation, for people. */
const ACTIONS = {
  MARK_UNKNOWN: 'Mark Unknown',
  TAINT: 'Taint',
  UNTAINT: 'Take taint off',
  SCHEDULE: 'New pods',
  ASSIGN_CIDR: 'Address block',
  DRAIN: 'Drain',
  DELETE_NODE: 'Delete node',
  POD_GC: 'Remove pods',
};

const LIFE = {
  LEASE: 'a renewal of its lease',
  STATUS: 'a report of its status',
  FIRST_SEEN: 'it was there when the controller began to lead',
  CREATED: 'its creation',
  RESET: 'a new grace period was given to all',
};

/** The answers about the chosen node. */
export class NodeAnswers {
  constructor(changed) {
    this.changed = changed;
    this.name = null;
    this.answer = null;
    this.failure = '';
    this.timer = 0;
  }

  /** Follows a node, or none if the name is empty. */
  follow(name) {
    if (this.name === name) return;
    this.name = name;
    this.answer = null;
    this.failure = '';
    this.ask();
  }

  /** Asks now, and then again and again while the node is chosen. */
  async ask() {
    clearTimeout(this.timer);
    const { name } = this;
    if (!name) return;
    try {
      const answer = document.hidden && this.answer ? this.answer : await api.node(name);
      if (this.name !== name) return;
      this.answer = answer;
      this.failure = '';
    } catch (error) {
      if (this.name !== name) return;
      this.failure = error.message;
    }
    this.changed();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), REFRESH);
  }
}

export const nodePanel = {
  isShown: (page) => page.selectedName !== '',
  show(page) {
    const { answer, failure } = page.answers;
    return [
      title(page),
      failure
        ? h(
            'section',
            { class: 'sec' },
            h('p', { class: 'bad' }, `The explanation of this node failed: ${failure}.`),
            h('button', { 'data-act': 'again' }, 'Try again'),
          )
        : null,
      answer
        ? content(page, answer)
        : failure
          ? null
          : h('section', { class: 'sec' }, h('p', { class: 'sub' }, 'Asking the controller.')),
    ];
  },
};

function title(page) {
  const { selected, selectedName: name, answers } = page,
    state = selected >= 0 ? page.fleet.state[selected] : -1;
  const summary = answers.answer?.explanation?.summary ?? '';
  return h(
    'section',
    { class: 'sec', 'data-key': 'title' },
    h(
      'div',
      { class: 'title' },
      state >= 0 ? icon(`s${state}`) : null,
      h('h2', { class: 'mono', tabindex: -1, id: 'node-title' }, name),
      h('span', { class: 'pill' }, state >= 0 ? WORDS[state] : 'no record'),
      h('button', { class: 'x', 'data-act': 'close', 'aria-label': 'Close the panel of this node' }, '\u00d7'),
    ),
    summary ? h('p', { class: 'sum' }, summary) : null,
    page.settings.allowActions && state >= 0 ? actions(answers.answer?.node) : null,
  );
}

function actions(node) {
  const spec = node?.spec ?? {},
    isDraining = spec.drain?.state === 'Draining';
  const button = (act, text) => h('button', { 'data-act': act, 'data-key': act }, text);
  return h(
    'div',
    { class: 'acts' },
    button('cordon', 'Cordon\u2026'),
    spec.unschedulable ? button('uncordon', isDraining ? 'Uncordon and cancel drain\u2026' : 'Uncordon\u2026') : null,
    isDraining ? null : button('drain', 'Drain\u2026'),
  );
}

function content(page, { explanation, node, pods, events, trace }) {
  return [
    explanation?.failure
      ? h(
          'section',
          { class: 'sec' },
          h('p', { class: 'warn' }, `The controller has not explained it: ${explanation.failure}.`),
        )
      : steps(page, explanation),
    podList(explanation, pods),
    conditions(node),
    spec(node),
    eventList(events),
    traceLink(page, trace),
    labels(node),
  ];
}

const section = (name, note, ...parts) =>
  h('section', { class: 'sec', 'data-key': name }, h('h3', {}, name, note != null ? h('span', {}, note) : null), parts);

/** What was heard last, and every action that is done, planned or held up, in the order of the answer. */
function steps(page, explanation) {
  if (!explanation) return null;
  const items = [
    heard(explanation),
    ...(explanation.explanations ?? []).map((it) => actionStep(page, explanation, it)),
  ].filter(Boolean);
  return items.length ? section('What happened, and what comes', null, h('ol', { class: 'steps' }, items)) : null;
}

function heard({ silence }) {
  if (!silence?.seenAt) return null;
  return step(
    'done',
    'Last heard',
    LIFE[(silence.seenBy ?? '').replace('SIGN_OF_LIFE_', '')] ?? '',
    h('time', {}, moment(millis(silence.seenAt))),
  );
}

function actionStep(page, { silence }, { action = '', state = '', reason, earliest, inputs }) {
  const kind = state.replace('EXPLANATION_STATE_', ''),
    act = action.replace('EXPLANATION_ACTION_', ''),
    at = millis(earliest);
  const left = at - page.controllerNow(),
    grace = duration(silence?.grace),
    isAlarm = ['MARK_UNKNOWN', 'TAINT', 'DELETE_NODE'].includes(act);
  // Between two renewals every node is on its way to Unknown; that is said when a renewal is missing.
  if (act === 'MARK_UNKNOWN' && kind === 'WAITING' && !(left < grace * 0.6)) return null;
  const share = act === 'MARK_UNKNOWN' && grace ? 1 - left / grace : 0.35,
    name = ACTIONS[act] ?? enumWord(action, 'EXPLANATION_ACTION_');
  const why = Object.entries(inputs ?? {})
    .map(([key, value]) => `${key}: ${value}`)
    .join(', ');
  if (kind === 'DONE') return step('done', name, reason, null, 0, why);
  if (kind === 'NONE') return step('todo', name, reason, null, 0, why);
  const when = Number.isNaN(at)
    ? h('span', { class: 'pill' }, enumWord(kind, ''))
    : until(at, isAlarm ? 'cd big alarm' : 'cd big');
  return step(
    kind === 'REFUSED' || kind === 'PAUSED' ? 'stop' : isAlarm ? 'now' : 'wait',
    name,
    reason,
    when,
    share,
    why,
  );
}

function step(kind, name, why, when, share = 0, inputs = '') {
  return h(
    'li',
    { class: kind, title: inputs || false },
    h(
      'span',
      { class: 'dot', css: { '--share': `${Math.round(100 * Math.max(0, Math.min(1, share)))}%` } },
      kind === 'done' ? icon('tick') : kind === 'stop' ? icon('bar') : null,
    ),
    h('span', { class: 'what' }, h('b', {}, name), h('span', { class: 'sub' }, why)),
    when,
  );
}

function podList(explanation, pods = []) {
  const phases = new Map(pods.map((pod) => [`${pod.namespace}/${pod.name}`, pod.phase]));
  const explained = explanation?.pods ?? pods;
  const rows = explained.slice(0, 200).map(({ namespace, name, decision, reason, earliestEviction }) => {
    const key = `${namespace}/${name}`,
      kind = (decision ?? '').replace('EVICTION_DECISION_', '');
    const what =
      kind === 'EVICT' && earliestEviction
        ? ['leaves in ', until(millis(earliestEviction))]
        : kind === 'EVICT'
          ? 'leaves'
          : kind === 'TERMINATING'
            ? 'is ending'
            : 'stays';
    return h(
      'tr',
      { 'data-key': key },
      h('td', { class: 'mono', title: reason || false }, key, reason ? h('span', { class: 'sub' }, reason) : null),
      h(
        'td',
        { class: 'right' },
        h('span', {}, what),
        phases.has(key) ? h('span', { class: 'sub' }, phases.get(key)) : null,
      ),
    );
  });
  return section(
    'Pods',
    number(explained.length),
    rows.length ? h('table', {}, h('tbody', {}, rows)) : h('p', { class: 'sub' }, 'No pod is bound to it.'),
  );
}

function conditions(node) {
  const list = node?.status?.conditions ?? [];
  if (!list.length) return null;
  const rows = list.map(({ type, status, reason, message, lastTransitionTime }) =>
    h(
      'tr',
      { title: message || false },
      h('td', {}, type),
      h('td', {}, h('span', { class: `pill${isWrong(type, status) ? ' wrong' : ''}` }, status)),
      h(
        'td',
        { class: 'sub' },
        reason,
        lastTransitionTime ? h('span', {}, ` since ${moment(millis(lastTransitionTime))}`) : null,
      ),
    ),
  );
  return section('Conditions', null, h('table', {}, h('tbody', {}, rows)));
}

const isWrong = (type, status) => status !== (type === 'Ready' ? 'True' : 'False');

function spec(node) {
  if (!node || node.failure)
    return node?.failure ? section('Record', null, h('p', { class: 'warn' }, node.failure)) : null;
  const { podCidrs = [], cordons = [], taints = [], drain, unschedulable } = node.spec ?? {},
    rows = [];
  const row = (name, ...value) => rows.push(h('dt', {}, name), h('dd', {}, value));
  row('Address block', podCidrs.length ? h('span', { class: 'mono' }, podCidrs.join(', ')) : 'none yet');
  for (const cordon of cordons)
    row(
      'Cordon',
      `${cordon.owner === 'drain' ? `the drain of ${cordon.requestedBy}` : cordon.owner}: ${cordon.reason ?? ''}`,
      cordon.expiresAt ? [', ends in ', until(millis(cordon.expiresAt))] : null,
    );
  if (unschedulable && !cordons.length) row('Cordon', 'new pods are kept away');
  if (drain) row('Drain', `${drain.state}: ${drain.message || drain.reason || ''}`, ` (asked by ${drain.requestedBy})`);
  for (const { key, value, effect } of taints)
    row('Taint', h('span', { class: 'mono' }, `${key}${value ? `=${value}` : ''}:${effect}`));
  const { addresses = [], nodeInfo = {} } = node.status ?? {};
  if (addresses.length)
    row('Addresses', h('span', { class: 'mono' }, [...new Set(addresses.map(({ address }) => address))].join(', ')));
  if (nodeInfo.osImage) row('System', `${nodeInfo.osImage}, ${nodeInfo.architecture ?? ''}`);
  return section('Block, cordons and taints', null, h('dl', { class: 'facts' }, rows));
}

function eventList(events = []) {
  if (!events.length) return null;
  const items = events.map(({ reason, message, lastTimestamp, count = 1, type }) =>
    h(
      'li',
      {},
      h('time', {}, moment(millis(lastTimestamp))),
      h(
        'span',
        {},
        h('b', { class: type === 'Warning' ? 'warn' : '' }, reason),
        count > 1 ? ` ${number(count)} times` : '',
        h('span', { class: 'sub' }, message),
      ),
    ),
  );
  return section('Events', 'newest first', h('ul', { class: 'events' }, items));
}

function traceLink(page, trace) {
  if (!trace) return null;
  const template = page.settings.traceUrl,
    short = h('span', { class: 'mono' }, trace);
  return section(
    'Trace of the last change',
    null,
    template
      ? h('a', { href: template.replace('{trace}', trace), target: '_blank', rel: 'noopener noreferrer' }, short)
      : h('p', { class: 'sub' }, short, ' \u2013 start the page with --trace-url to make this a link'),
  );
}

function labels(node) {
  const entries = Object.entries(node?.metadata?.labels ?? {});
  if (!entries.length) return null;
  return section(
    'Labels',
    number(entries.length),
    h(
      'div',
      { class: 'tags' },
      entries
        .sort()
        .map(([key, value]) =>
          h(
            'button',
            { class: 'tag mono', 'data-label': `${key}=${value}`, title: 'Show only the nodes with this label' },
            `${key}=${value}`,
          ),
        ),
    ),
  );
}
