// What the page may do if it was started with --allow-actions: it asks for a reason first, and for a drain shows the plan.

import * as api from './api.js';
import { byId, h, show } from './dom.js';
import { enumWord, many } from './words.js';

const TITLES = { cordon: 'Cordon', uncordon: 'Uncordon', drain: 'Drain' };
const WHAT = {
  cordon: 'New pods are kept away. Pods that run on it stay.',
  uncordon: 'Takes off your cordon, and cancels a drain that you asked for.',
  drain: 'Cordons the node and evicts its pods as their disruption budgets allow.',
};
const OPTIONS = {
  cordon: [],
  uncordon: [['all', 'Also take off the cordons of others']],
  drain: [
    ['ignoreDaemonsets', 'Leave pods of daemon sets running'],
    ['force', 'Also evict pods that nothing will create again'],
    ['deleteEmptydirData', 'Also evict pods with emptyDir volumes; their content is lost'],
  ],
};

/** The token of this window: it stands behind `#` in the address that was printed at the start. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  try {
    if (given) sessionStorage.setItem('muster-token', given);
    return given ?? sessionStorage.getItem('muster-token') ?? '';
  } catch {
    return given ?? '';
  }
}

/** The dialog for one action. */
export class ActionDialog {
  constructor(token, done) {
    Object.assign(this, { token, done, dialog: byId('act'), plan: null });
    this.dialog.addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    this.dialog.addEventListener('input', () => this.forgetPlan());
  }

  open(kind, node) {
    Object.assign(this, { kind, node, plan: null, failure: '', isBusy: false });
    // Of the last dialog nothing is left, not even what was typed.
    this.dialog.replaceChildren();
    this.draw();
    this.dialog.showModal();
    this.dialog.querySelector('input').focus();
  }

  forgetPlan() {
    if (!this.plan && !this.failure) return;
    Object.assign(this, { plan: null, failure: '' });
    this.draw();
  }

  get needsPlan() {
    return this.kind === 'drain' && !this.plan;
  }

  draw() {
    const { kind, node } = this;
    show(
      this.dialog,
      h(
        'form',
        { method: 'dialog' },
        h('h2', {}, `${TITLES[kind]} `, h('span', { class: 'mono' }, node)),
        h('p', { class: 'sub' }, WHAT[kind]),
        h(
          'label',
          {},
          'Reason',
          h('input', {
            name: 'reason',
            required: true,
            maxlength: 500,
            autocomplete: 'off',
            placeholder: 'It is kept with the node',
          }),
        ),
        OPTIONS[kind].map(([name, text]) =>
          h('label', { class: 'check' }, h('input', { type: 'checkbox', name }), text),
        ),
        this.plan ? planOf(this.plan) : null,
        h('p', { class: 'bad', role: 'alert' }, this.failure),
        h(
          'div',
          { class: 'acts' },
          h('button', { type: 'button', 'data-act': 'cancel' }, 'Cancel'),
          h(
            'button',
            {
              type: 'submit',
              class: 'main',
              disabled: this.isBusy || this.plan?.state === 'DRAIN_PROGRESS_STATE_REFUSED',
            },
            this.needsPlan ? 'Show the plan' : TITLES[kind],
          ),
        ),
      ),
    );
  }

  async send() {
    if (this.isBusy) return;
    const form = this.dialog.querySelector('form'),
      { needsPlan, kind, node } = this;
    const action = { action: kind, reason: form.elements.reason.value };
    for (const [name] of OPTIONS[kind]) action[name] = form.elements[name].checked;
    if (kind === 'drain') action.planOnly = needsPlan;
    Object.assign(this, { isBusy: true, failure: '' });
    this.draw();
    try {
      const answer = await api.act(node, this.token, action);
      this.isBusy = false;
      if (needsPlan) this.plan = answer;
      else if (answer.state === 'DRAIN_PROGRESS_STATE_REFUSED') this.plan = answer;
      else {
        this.dialog.close();
        this.done(`${TITLES[kind]} of ${node} is done${kind === 'drain' ? ': its pods leave now' : ''}.`);
        return;
      }
    } catch (error) {
      Object.assign(this, { isBusy: false, failure: `${error.message}.` });
    }
    this.draw();
  }
}

function planOf({ state, message, pods = [] }) {
  const rows = pods
    .slice(0, 100)
    .map((pod) =>
      h(
        'tr',
        {},
        h('td', { class: 'mono' }, `${pod.namespace}/${pod.name}`),
        h('td', {}, enumWord(pod.action, 'DRAIN_POD_ACTION_')),
        h('td', { class: 'sub' }, pod.reason),
      ),
    );
  return h(
    'div',
    { class: 'plan' },
    h(
      'p',
      { class: state === 'DRAIN_PROGRESS_STATE_REFUSED' ? 'bad' : '' },
      message || `${many(pods.length, 'pod')} on it.`,
    ),
    rows.length ? h('table', {}, h('tbody', {}, rows)) : null,
  );
}
