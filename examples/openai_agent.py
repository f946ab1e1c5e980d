"""Train an agent that is written with the official OpenAI client.

    python examples/openai_agent.py [key=value ...]

``solve`` is the agent, and knows nothing of prl. Each episode lends it a client that speaks to the engines in the
episode's name; what it makes the model say is trained, token by token, by the reward that the episode gets in the end.
"""

from __future__ import annotations

import openai

import prl


async def solve(client: openai.AsyncOpenAI, question: str) -> str:
    """Answer a question, then ask the model to answer it once more with its first answer before it."""
    asked: openai.types.chat.ChatCompletionMessageParam = {"role": "user", "content": question}
    first = await client.chat.completions.create(model="policy", messages=[asked])
    draft = first.choices[0].message.content or ""
    drafted: openai.types.chat.ChatCompletionMessageParam = {"role": "assistant", "content": draft}
    last = await client.chat.completions.create(model="policy", messages=[asked, drafted, asked])
    return last.choices[0].message.content or ""


@prl.environment("solved_by_agent")
class SolvedByAgent:
    """Lets the agent play; the episodes share one client's connections."""

    asks_over_http = True

    async def open(self) -> None:
        """Make the client once: it costs milliseconds."""
        self._client = openai.AsyncOpenAI(base_url="http://localhost", api_key="of the episode")

    async def close(self) -> None:
        """End its connections."""
        await self._client.close()

    async def __call__(self, session: prl.Session, prompt: prl.Prompt) -> float:
        """One episode: 1 where the agent's last answer is right."""
        client = self._client.with_options(base_url=session.base_url, api_key=session.api_key)
        answer = await solve(client, prompt.messages[-1]["content"])
        return float(f"\\boxed{{{prompt.fields['answer']}}}" in answer)


if __name__ == "__main__":
    from training import train

    train(
        "run.name=openai-agent",
        'environment.name="solved_by_agent"',
        "gateway.enabled=true",
        "rewards=[]",
        "engine.max_model_len=192",
    )
