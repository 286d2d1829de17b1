"""Fixed messages that the agent loop sends to the model."""

WRAP_UP_REQUEST = (
    "You cannot go on: a limit is reached. Give the best final answer you can from what is known,"
    " and say what is missing. No tools are left."
)
LAST_TURN = (
    "This is the last reply that a limit allows: no tool can be called after it. Give your final"
    " answer now. If something is missing, say what."
)
NOT_CALLED = "The tool was not called: a limit leaves no reply that could read its result."
CUT_OFF = (
    "The tool was not called: your reply ended before the arguments were complete ({incomplete})."
    " Call it again, with shorter arguments if need be."
)
EMPTY = "Your last reply was empty. Give your answer, or call a tool."
SUMMARY_REQUEST = (
    "Summarise this part of a conversation for the one who goes on with it: facts, results,"
    " decisions and what is still open. Be brief and leave out nothing that may be needed."
)
UNREADABLE = (
    "Your last reply could not be read. Reply with the call of one tool and nothing else, or with"
    " plain text. The tools are: {known}."
)
REPEATED = (
    "You have made these calls before, with the same results. Make the call that is still needed,"
    " or give the answer."
)
