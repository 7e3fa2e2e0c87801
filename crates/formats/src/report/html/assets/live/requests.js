// Requests to the agent, with the token if it requires one. The token is only ever sent as a header.

const TOKEN_NAME = "vramscope-token";

/** An error of a request, with the agent's advice. */
class RequestError extends Error {
  /** @param {number} status @param {string} text */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** @param {string} path @param {AbortSignal} [signal] */
async function request(path, signal) {
  const token = sessionStorage.getItem(TOKEN_NAME);
  const headers = token ? { authorization: `Bearer ${token}` } : undefined;
  const response = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (response.ok) return response;
  const { error, hint } = await response.json().catch(() => ({ error: `status ${response.status}`, hint: "" }));
  throw new RequestError(response.status, hint ? `${error}; ${hint}` : error);
}

/** @param {string} path */
async function requestJson(path) {
  return (await request(path)).json();
}

/** Asks for the token. @param {() => void} then */
function startLogin(then) {
  const form = /** @type {HTMLFormElement} */ (byId("login"));
  const input = /** @type {HTMLInputElement} */ (byId("token"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN_NAME, input.value.trim());
    input.value = "";
    form.hidden = true;
    then();
  });
  byId("logout").addEventListener("click", () => {
    sessionStorage.removeItem(TOKEN_NAME);
    location.reload();
  });
}

/** Shows the form after a request without a valid token. */
function showLogin() {
  byId("login-error").textContent = sessionStorage.getItem(TOKEN_NAME) ? "The agent does not accept this token." : "";
  sessionStorage.removeItem(TOKEN_NAME);
  byId("live").hidden = true;
  byId("logout").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}
