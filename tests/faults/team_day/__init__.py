"""A team's day at one gateway with keys, in a few minutes: three tenants, restarts, rotated and revoked keys (API-4).

    services.py    PostgreSQL, Redis, Temporal, a worker and a gateway, with the settings of `docker-compose.yml`
    evidence.py    the changes that were accepted, and everything that must not happen
    people.py      a person: name, tenant, role, key
    by_http.py     what a person does by HTTP: the work of the role, and what the role and the tenant forbid
    by_terminal.py prompts with `turnkeeper chat`
    by_page.py     prompts on the page, in a browser
    day.py         the plan: people work, keys are rotated, a person is removed, gateway and worker are killed
    audit.py       compares the audit of each tenant with the changes that were accepted

Nobody may see or do what belongs to another tenant, or what the role forbids, and every change is in the audit.
"""
