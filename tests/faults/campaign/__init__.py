"""`make soak`: a real stack under load and faults, and an offline checker of what it promised (OPS-10).

The chapters, each of which only knows those above it:

    evidence       what was asked, answered, seen and done: plain data
    law            a client's copy of a conversation by the rules of SES-12, written a second time
    checker        which promises the evidence breaks: pure
    plan           which faults strike when: pure, from a seed
    proxy          a TCP connection that can be cut, stalled and resumed
    effects        the tool server whose effects are counted
    scripts        what the scripted model answers
    stack          the processes, each of which can be killed, frozen and cut off
    calls          one HTTP request and its outcome: ok, failed, or unknown
    writers        who sends prompts, steers, interrupts, cancels and withdraws
    watchers       who follows a session: one by the event stream, one by polling
    faults         carries out the plan
    settling       waits until all work is done, and notices what makes no progress
    ending         reads the state everything ended in
    histories      replays what Temporal recorded
    campaign       all of it, from start to end
    report         the verdict as a table and as JSON
    __main__       the command line
"""
