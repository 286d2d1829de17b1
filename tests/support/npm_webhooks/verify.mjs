// Verifies the webhook that stands on stdin as JSON: {secret, headers, body}.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const { Webhook } = createRequire(process.argv[2] + "/")("standardwebhooks");
const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
