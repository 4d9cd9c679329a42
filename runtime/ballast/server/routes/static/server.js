// Requests to the server that this page came from. Paths are relative, so that it also works under a proxy's prefix.

const KEY = "ballast-api-key";

export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

// The error that a refused request ends with; `code` is the server's name of the reason.
export async function refusal(response) {
  try {
    const { message, code } = (await response.json()).error;
    return Object.assign(new Error(message), { code });
  } catch {
    return new Error(`the server answered ${response.status}`);
  }
}

// Each event of a stream, parsed; comments and the end mark are left out.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ") && frame !== "data: [DONE]") yield JSON.parse(frame.slice(6));
    }
  }
}
