"""An agent with one tool, written with LangGraph."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def rain(city: str) -> str:
    """Return the rain of the last hour in a city."""
    print("tool: rain in", city, flush=True)
    return "12 mm"


agent = create_agent(ChatOpenAI(model="small"), [rain])
question = {"messages": [("user", "Report on the rain in Bergen.")]}
for part, about in agent.stream(question, stream_mode="messages"):
    if about["langgraph_node"] == "model":
        print(part.content, end="", flush=True)
print()
