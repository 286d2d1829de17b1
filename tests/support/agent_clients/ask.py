"""Asks a question with one client library; prints the outcome as one line of JSON.

Usage: ``ask.py CLIENT QUESTION [stream]``. The base URL and the key are environment variables. It
only imports the library that it uses, with its default retries.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

MODEL = os.environ["ASKED_MODEL"]


def _of(module: str) -> Any:
    return import_module(module)


async def openai_chat(question: str, stream: bool) -> str:
    async with _of("openai").AsyncOpenAI() as client:
        messages = [{"role": "user", "content": question}]
        reply = await client.chat.completions.create(model=MODEL, messages=messages, stream=stream)
        if stream:
            return "".join([part.choices[0].delta.content or "" async for part in reply])
        return str(reply.choices[0].message.content)


async def openai_responses(question: str, stream: bool) -> str:
    async with _of("openai").AsyncOpenAI() as client:
        if not stream:
            return str((await client.responses.create(model=MODEL, input=question)).output_text)
        text = ""
        async for event in await client.responses.create(model=MODEL, input=question, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("error", "response.failed"):
                raise RuntimeError(f"the client returned {event}")
        return text


async def anthropic(question: str, stream: bool) -> str:
    async with _of("anthropic").AsyncAnthropic() as client:
        messages = [{"role": "user", "content": question}]
        body = {"model": MODEL, "max_tokens": 1000, "messages": messages}
        if not stream:
            return str((await client.messages.create(**body)).content[0].text)
        async with client.messages.stream(**body) as reply:
            return "".join([text async for text in reply.text_stream])


async def openai_agents(question: str, stream: bool, model: str = "Responses") -> str:
    agents = _of("agents")
    agents.set_tracing_disabled(True)
    async with _of("openai").AsyncOpenAI() as client:
        kind = getattr(agents, f"OpenAI{model}Model")
        agent = agents.Agent(name="asks", model=kind(model=MODEL, openai_client=client))
        if not stream:
            return str((await agents.Runner.run(agent, question)).final_output)
        result = agents.Runner.run_streamed(agent, question)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)


async def openai_agents_chat(question: str, stream: bool) -> str:
    return await openai_agents(question, stream, "ChatCompletions")


async def pydantic_ai(question: str, stream: bool) -> str:
    agent = _of("pydantic_ai").Agent(_of("pydantic_ai.models.openai").OpenAIChatModel(MODEL))
    if not stream:
        return str((await agent.run(question)).output)
    async with agent.run_stream(question) as reply:
        return "".join([text async for text in reply.stream_text(delta=True)])


async def pydantic_ai_anthropic(question: str, stream: bool) -> str:
    models = _of("pydantic_ai.models.anthropic")
    agent = _of("pydantic_ai").Agent(models.AnthropicModel(MODEL))
    if not stream:
        return str((await agent.run(question)).output)
    async with agent.run_stream(question) as reply:
        return "".join([text async for text in reply.stream_text(delta=True)])


async def langchain_openai(question: str, stream: bool) -> str:
    model = _of("langchain_openai").ChatOpenAI(model=MODEL)
    if not stream:
        return str((await model.ainvoke(question)).content)
    return "".join([str(part.content) async for part in model.astream(question)])


async def langchain_anthropic(question: str, stream: bool) -> str:
    model = _of("langchain_anthropic").ChatAnthropic(model=MODEL)
    if not stream:
        return str((await model.ainvoke(question)).content)
    return "".join([str(part.content) async for part in model.astream(question)])


async def crewai(question: str, stream: bool) -> str:
    crew = _of("crewai")
    model = crew.LLM(model=f"openai/{MODEL}", stream=stream)
    agent = crew.Agent(role="reporter", goal="Reports", backstory="Reports.", llm=model)
    task = crew.Task(description=question, expected_output="A text", agent=agent)
    return str(await asyncio.to_thread(crew.Crew(agents=[agent], tasks=[task]).kickoff))


async def dspy(question: str, stream: bool) -> str:
    library = _of("dspy")
    library.configure(lm=library.LM(f"openai/{MODEL}", cache=False))
    if not stream:
        return str((await library.settings.lm.acall(question))[0])
    parts = library.streamify(library.Predict("question -> answer"))(question=question)
    return "".join([str(part) async for part in parts])


async def llama_index(question: str, stream: bool) -> str:
    model = _of("llama_index.llms.openai").OpenAI(model=MODEL)
    agents = _of("llama_index.core.agent.workflow")
    return str(await agents.FunctionAgent(llm=model, streaming=stream).run(user_msg=question))


async def google_adk(question: str, stream: bool) -> str:
    agents, types = _of("google.adk.agents"), _of("google.genai.types")
    modes = _of("google.adk.agents.run_config")
    mode = modes.StreamingMode.SSE if stream else modes.StreamingMode.NONE
    model = _of("google.adk.models.lite_llm").LiteLlm(model=f"openai/{MODEL}")
    agent = agents.LlmAgent(name="reporter", model=model)
    runner = _of("google.adk.runners").InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    events = runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text=question)]),
        run_config=modes.RunConfig(streaming_mode=mode),
    )
    return "".join([part.text or "" async for event in events for part in event.content.parts])


async def smolagents(question: str, stream: bool) -> str:
    model = _of("smolagents").OpenAIModel(MODEL, api_base=os.environ["OPENAI_BASE_URL"])
    messages = [{"role": "user", "content": [{"type": "text", "text": question}]}]
    if not stream:
        return str(model.generate(messages).content)
    return "".join([part.content or "" for part in model.generate_stream(messages)])


async def autogen(question: str, stream: bool) -> str:
    agents, models = _of("autogen_agentchat.agents"), _of("autogen_ext.models.openai")
    model = models.OpenAIChatCompletionClient(model=MODEL)
    try:
        agent = agents.AssistantAgent("reporter", model, model_client_stream=stream)
        return str((await agent.run(task=question)).messages[-1].content)
    finally:
        await model.close()


async def agent_framework(question: str, stream: bool, api: str = "ChatCompletion") -> str:
    client = getattr(_of("agent_framework.openai"), f"OpenAI{api}Client")(model=MODEL)
    agent = _of("agent_framework").Agent(client, instructions="You report.")
    if not stream:
        return str(await agent.run(question))
    return "".join([part.text async for part in agent.run(question, stream=True)])


async def agent_framework_responses(question: str, stream: bool) -> str:
    return await agent_framework(question, stream, "Chat")


async def litellm(question: str, stream: bool) -> str:
    messages = [{"role": "user", "content": question}]
    complete = _of("litellm").acompletion
    reply = await complete(model=f"openai/{MODEL}", messages=messages, stream=stream)
    if stream:
        return "".join([part.choices[0].delta.content or "" async for part in reply])
    return str(reply.choices[0].message.content)


CLIENTS: dict[str, Callable[[str, bool], Coroutine[Any, Any, str]]] = {
    each.__name__: each
    for each in (
        openai_chat,
        openai_responses,
        anthropic,
        openai_agents,
        openai_agents_chat,
        pydantic_ai,
        pydantic_ai_anthropic,
        langchain_openai,
        langchain_anthropic,
        crewai,
        dspy,
        llama_index,
        google_adk,
        smolagents,
        autogen,
        agent_framework,
        agent_framework_responses,
        litellm,
    )
}


def main(client: str, question: str, stream: str = "") -> None:
    try:
        outcome = {"answer": asyncio.run(CLIENTS[client](question, bool(stream)))}
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
