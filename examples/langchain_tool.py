"""LangChain both ways: the agent as a tool, our search as a retriever, and a LangChain retriever as the agent's backend.

python examples/langchain_tool.py
"""

from __future__ import annotations

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from parallelsearch import Agent, Search
from parallelsearch.integrations.langchain import LangChainRetriever, agent_tool, as_retriever

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"

with Agent() as agent:
    tool = agent_tool(agent)
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": {"question": QUESTION}})
print("tool:", message.content, "| sub-queries:", message.artifact.trajectory.num_subqueries)

with as_retriever("demo", k=2) as retriever:
    for document in retriever.invoke("When was Claude Monet born?"):
        print("retriever:", document.metadata["title"])

# Any LangChain retriever, or runnable from a string to documents, can be what the agent searches.
own = [
    Document("Claude Monet was born on 14 November 1840.", metadata={"title": "Monet"}),
    Document("Camille Pissarro was born on 10 July 1830.", metadata={"title": "Pissarro"}),
]
lookup = RunnableLambda(lambda query: [document for document in own if document.metadata["title"] in query])
with Agent("demo", Search(LangChainRetriever(lookup))) as agent:
    trajectory = agent.ask(QUESTION)
for query in trajectory.turns[0].queries:
    print(f"backend: {query.text} -> {query.hits[0].text if query.hits else query.error}")
