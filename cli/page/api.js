// Calls of the server that this page came from.

/** An answer that is not what was asked for, with the reason in words. */
export class Refusal extends Error {}

async function read(response) {
  const content = await response.json().catch(() => ({ failure: `the answer has the status ${response.status}` }));
  if (!response.ok) throw new Refusal(content.failure ?? `the answer has the status ${response.status}`);
  return content;
}

const call = (path, options) =>
  fetch(path, options).then(read, () => {
    throw new Refusal('the page has lost its server');
  });

export const settings = () => call('/api/settings');
export const node = (name) => call(`/api/nodes/${encodeURIComponent(name)}`);
export const search = (selector) => call(`/api/nodes?selector=${encodeURIComponent(selector)}`);

export const act = (name, token, action) =>
  call(`/api/nodes/${encodeURIComponent(name)}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'muster-token': token },
    body: JSON.stringify(action),
  });
