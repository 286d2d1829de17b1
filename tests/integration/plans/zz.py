"""Write the table from a scenario on a small database."""
import asyncio, sys, tempfile, pickle
from pathlib import Path
import psycopg
from tests.support.database import open_server
from tests.support.fake_provider.client import FakeProvider
from tests.integration.plans.probe import Probe
from tests.integration.plans.entries import *
from tests.integration.plans.scenario import scenario
from tests.integration.plans.test_plans import play, unrequested
async def main(url):
    with psycopg.connect(url, autocommit=True) as c: names=names_of(c)
    p=Probe()
    with p.watching():
        async with FakeProvider() as provider, scenario(url, provider) as told:
            await play(told,p,"small")
    print("unrequested", unrequested(told.requests))
    print("errors", [e for e in p.explained if e.error])
    print("unexplained", {text for _, text in p.sent} - {each.statement for each in p.explained})
    print("unreached", sorted(set(sites())-p.functions))
    pairs={(pl,summary_of(t,names)) for pl,t in p.sent}
    pickle.dump({x for x in pairs if x[1]}, open(sys.argv[1],'wb'))
    print(len(pairs), len(p.sent))
with tempfile.TemporaryDirectory(prefix="caseworker-pg-") as f, open_server(Path(f)/"d", synced=False) as s, s.database() as url:
    asyncio.run(main(url))
